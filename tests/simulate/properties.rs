//! What must hold under some faults and not under others.
