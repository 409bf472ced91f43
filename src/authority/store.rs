//! The records on disk, in redb: one commit per operation, on the platter before it is answered.

use super::records::{Durable, Write};
use crate::lease::id::{BootId, DomainId, Epoch, NodeId};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The layout of the tables. A store of another one is refused, never guessed at.
const SCHEMA: u64 = 1;
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const LEASES: TableDefinition<&str, &[u8]> = TableDefinition::new("leases");
const NODES: TableDefinition<&str, &[u8]> = TableDefinition::new("nodes");

/// What is wrong with the store, as a sentence.
#[derive(Debug)]
pub struct StoreError(String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// An open store. It is this process's alone for as long as it lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// `None` after a failed commit, until it could be opened again.
    database: Option<Database>,
    /// Held by flock(2), so that no second authority slips in while the database is reopened.
    _lock: File,
}

/// What a store held when it was opened.
#[derive(Debug)]
pub struct Loaded {
    /// The records.
    pub durable: Durable,
    /// The boot of the authority's machine in which the store was last opened.
    pub boot: Option<BootId>,
}

impl Store {
    /// Opens the store in a directory, which is made if it is not there, and notes the boot it is opened in.
    ///
    /// # Errors
    /// A sentence: another process has it, it cannot be read or written, or its layout is of another version.
    pub fn open(dir: &Path, boot: Option<BootId>) -> Result<(Store, Loaded), StoreError> {
        let wrong = |what: &str, why: &dyn fmt::Display| {
            StoreError(format!("cannot {what} the authority's data in {}: {why}", dir.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| wrong("create", &e))?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"));
        let lock = lock.map_err(|e| wrong("lock", &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError(format!(
                    "another leasehold-authority has {} open: two would grant one domain twice; stop it, or name another --data",
                    dir.display()
                )));
            }
            Err(TryLockError::Error(e)) => return Err(wrong("lock", &e)),
        }
        let path = dir.join("authority.redb");
        let database = Database::create(&path).map_err(|e| wrong("open", &e))?;
        let loaded = load(&database, boot).map_err(|e| wrong("read", &e))?;
        Ok((Store { path, database: Some(database), _lock: lock }, loaded))
    }

    /// Makes writes durable, all or none. On an error it is unknown whether they are; the next commit opens the
    /// database again first.
    ///
    /// # Errors
    /// A sentence saying what the disk said.
    pub fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.is_empty() {
            return Ok(());
        }
        let wrong = |e: &dyn fmt::Display| StoreError(format!("cannot write {}: {e}", self.path.display()));
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::open(&self.path).map_err(|e| wrong(&e))?,
        };
        put(&database, writes).map_err(|e| wrong(&e))?;
        self.database = Some(database);
        Ok(())
    }
}

fn put(database: &Database, writes: &[Write]) -> Result<(), Box<dyn std::error::Error>> {
    // Durability::Immediate is redb's default: commit returns after fsync.
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let mut leases = transaction.open_table(LEASES)?;
        let mut nodes = transaction.open_table(NODES)?;
        for write in writes {
            match write {
                Write::Epoch(epoch) => drop(meta.insert("epoch", serde_json::to_vec(epoch)?.as_slice())?),
                Write::Lease(domain, Some(record)) => {
                    drop(leases.insert(domain.to_string().as_str(), serde_json::to_vec(record)?.as_slice())?);
                }
                Write::Lease(domain, None) => drop(leases.remove(domain.to_string().as_str())?),
                Write::Node(id, record) => drop(nodes.insert(id.as_str(), serde_json::to_vec(record)?.as_slice())?),
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn load(database: &Database, boot: Option<BootId>) -> Result<Loaded, Box<dyn std::error::Error>> {
    let transaction = database.begin_write()?;
    let mut loaded = Loaded { durable: Durable::default(), boot: None };
    {
        let mut meta = transaction.open_table(META)?;
        let schema: Option<u64> = get(meta.get("schema")?)?;
        match schema {
            Some(SCHEMA) => {}
            None => drop(meta.insert("schema", serde_json::to_vec(&SCHEMA)?.as_slice())?),
            Some(other) => {
                return Err(format!(
                    "it was written by another version of leasehold-authority (layout {other}, this one knows {SCHEMA}); \
                     start the version that wrote it"
                )
                .into());
            }
        }
        loaded.durable.epoch = get(meta.get("epoch")?)?.unwrap_or(Epoch(0));
        loaded.boot = get::<Option<BootId>>(meta.get("boot")?)?.flatten();
        drop(meta.insert("boot", serde_json::to_vec(&boot)?.as_slice())?);
        for entry in transaction.open_table(LEASES)?.iter()? {
            let (key, value) = entry?;
            let domain: DomainId = key.value().parse()?;
            loaded.durable.leases.insert(domain, parse(value.value()).map_err(|e| format!("lease {domain}: {e}"))?);
        }
        for entry in transaction.open_table(NODES)?.iter()? {
            let (key, value) = entry?;
            let id: NodeId = key.value().parse()?;
            let record = parse(value.value()).map_err(|e| format!("node {id}: {e}"))?;
            loaded.durable.nodes.insert(id, record);
        }
    }
    transaction.commit()?;
    // Opened for reading once, so that a damaged file is noticed before the first answer and not at the next start.
    drop(database.begin_read()?);
    Ok(loaded)
}

fn get<T: DeserializeOwned>(value: Option<redb::AccessGuard<'_, &[u8]>>) -> Result<Option<T>, serde_json::Error> {
    value.map(|value| parse(value.value())).transpose()
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::records::{LeaseRecord, NodeRecord};
    use super::*;

    fn domain(n: u8) -> DomainId {
        DomainId::from_bytes([n; 16])
    }

    #[test]
    fn what_was_committed_is_there_after_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, loaded) = Store::open(dir.path(), None).unwrap();
        assert_eq!(loaded.durable, Durable::default());
        let lease = |name: &str| Some(Box::new(LeaseRecord { name: name.to_owned(), ..LeaseRecord::default() }));
        let fenced = NodeRecord { fenced: Some("now".to_owned()), ..NodeRecord::default() };
        let writes = [
            Write::Epoch(Epoch(7)),
            Write::Lease(domain(1), lease("a")),
            Write::Lease(domain(2), lease("b")),
            Write::Lease(domain(1), None),
            Write::Node("n1".parse().unwrap(), Box::new(fenced)),
        ];
        store.commit(&writes).unwrap();
        drop(store);
        let mut expected = Durable::default();
        writes.into_iter().for_each(|write| expected.apply(write));
        assert_eq!(Store::open(dir.path(), None).unwrap().1.durable, expected);
    }

    #[test]
    fn a_second_process_is_refused_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Store::open(dir.path(), None).unwrap();
        let error = Store::open(dir.path(), None).unwrap_err().to_string();
        assert!(error.starts_with("another leasehold-authority has "), "{error}");
    }

    #[test]
    fn a_store_of_a_later_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path(), None).unwrap());
        let database = Database::create(dir.path().join("authority.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("schema", b"2".as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Store::open(dir.path(), None).unwrap_err().to_string();
        assert!(error.contains("layout 2, this one knows 1"), "{error}");
    }

    #[test]
    fn the_boot_it_was_last_opened_in_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let boot = BootId::from_bytes([3; 16]);
        assert_eq!(Store::open(dir.path(), Some(boot)).unwrap().1.boot, None);
        assert_eq!(Store::open(dir.path(), None).unwrap().1.boot, Some(boot));
    }
}
