pub fn is_daemon_name(name: &str) -> bool {
    matches!(name, "libvirtd" | "virtqemud")
}
