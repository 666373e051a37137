//! A thread that writes the files of a directory: a busy disk holds up a new file or a rename for seconds, and pmcd does not wait. No other
//! thread of the agent has the right to.

use super::file::{read_state, replace_state};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time for which the end of the agent waits for its files. pmcd, which may wait for the agent, gives it five seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// The files of a directory, and the thread that writes them. Until it is started each is written by whoever has it written.
pub struct Writer {
    directory: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    /// Something is to be written, or was.
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: BTreeMap<PathBuf, Arc<Vec<u8>>>,
    /// The file that is being written.
    current: Option<(PathBuf, Arc<Vec<u8>>)>,
    /// The files that could not be written when that was last tried.
    failed: BTreeSet<PathBuf>,
    is_started: bool,
    is_over: bool,
}

impl Writer {
    /// Makes the writer of a directory.
    pub fn new(directory: PathBuf) -> Writer {
        Writer { directory, shared: Arc::default() }
    }

    /// Starts the thread, and waits until `confine` has returned in it: the system calls that it takes are forbidden to all threads a moment
    /// later. From now on files are written only while `may_write` says so: it is asked right before each.
    pub fn start(
        &self,
        confine: impl FnOnce() + Send + 'static,
        may_write: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<()> {
        let of_thread = Arc::clone(&self.shared);
        let (confined, is_confined) = mpsc::channel::<()>();
        let run = move || {
            confine();
            drop(confined);
            of_thread.write_all(&may_write);
        };
        thread::Builder::new().name("state".into()).stack_size(256 << 10).spawn(run)?;
        let _ = is_confined.recv();
        self.shared.lock().is_started = true;
        Ok(())
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the content of a file, or the content that waits to be written.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let work = self.shared.lock();
        let current = work.current.as_ref().filter(|(of, _)| of == path).map(|(_, bytes)| bytes);
        let Some(bytes) = work.waiting.get(path).or(current).cloned() else {
            drop(work);
            return read_state(path);
        };
        Ok(bytes.to_vec())
    }

    /// Replaces a file soon. Content of it that still waits is passed over.
    pub fn write(&self, path: &Path, bytes: Vec<u8>) {
        let mut work = self.shared.lock();
        if !work.is_started {
            drop(work);
            return self.shared.note(path, replace_state(path, &bytes));
        }
        work.waiting.insert(path.to_path_buf(), Arc::new(bytes));
        self.shared.changed.notify_all();
    }

    /// Returns true if a file is still to be written.
    pub fn is_busy(&self, path: &Path) -> bool {
        let work = self.shared.lock();
        work.waiting.contains_key(path) || work.current.as_ref().is_some_and(|(of, _)| of == path)
    }

    /// Returns true if a file could not be written, which was logged.
    pub fn has_failed(&self, path: &Path) -> bool {
        self.shared.lock().failed.contains(path)
    }

    /// Waits for what is to be written, but not for a disk that hangs.
    pub fn finish(&self) {
        let is_busy = |work: &mut Work| work.current.is_some() || !work.waiting.is_empty();
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), PATIENCE, is_busy);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            log::warn!("identifiers of the last seconds are not saved: {} is slow", self.directory.display());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, may_write: &dyn Fn() -> bool) {
        while let Some((path, bytes)) = self.next() {
            let written = if may_write() { replace_state(&path, &bytes) } else { Ok(()) };
            self.note(&path, written);
        }
    }

    /// Notes what became of a file.
    fn note(&self, path: &Path, written: io::Result<()>) {
        let mut work = self.lock();
        work.current = None;
        match written {
            Ok(()) => drop(work.failed.remove(path)),
            Err(error) => {
                if work.failed.insert(path.to_path_buf()) {
                    log::warn!("{}: cannot be saved: {error}; the next start does without", path.display());
                }
            }
        }
        self.changed.notify_all();
    }

    /// Waits for the next file to write; `None` at the end.
    fn next(&self) -> Option<(PathBuf, Arc<Vec<u8>>)> {
        let has_none = |work: &mut Work| work.waiting.is_empty() && !work.is_over;
        let waited = self.changed.wait_while(self.lock(), has_none);
        let mut work = waited.unwrap_or_else(PoisonError::into_inner);
        work.current = work.waiting.pop_first();
        work.current.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn started(directory: &Path, may_write: impl Fn() -> bool + Send + 'static) -> Writer {
        let writer = Writer::new(directory.into());
        writer.start(|| {}, may_write).unwrap();
        writer
    }

    /// A system call of `confine` after the start would end the agent, since the calls are limited by then.
    #[test]
    fn the_thread_is_confined_once_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let is_confined = Arc::new(AtomicBool::new(false));
        let in_thread = Arc::clone(&is_confined);
        let confine = move || {
            thread::sleep(Duration::from_millis(20));
            in_thread.store(true, Ordering::Relaxed);
        };
        Writer::new(directory.path().into()).start(confine, || true).unwrap();
        assert!(is_confined.load(Ordering::Relaxed));
    }

    #[test]
    fn before_it_is_started_a_file_is_written_at_once() {
        let home = tempfile::tempdir().unwrap();
        let writer = Writer::new(home.path().into());
        let path = writer.path("149.1");
        writer.write(&path, b"now".to_vec());
        assert_eq!((fs::read(&path).unwrap(), writer.is_busy(&path)), (b"now".to_vec(), false));
        let (tell, told) = mpsc::channel();
        writer.start(move || tell.send(thread::current().id()).unwrap(), || true).unwrap();
        assert_ne!(told.recv().unwrap(), thread::current().id(), "the thread is confined, and no other one");
        writer.write(&path, b"later".to_vec());
        writer.finish();
        assert_eq!(fs::read(&path).unwrap(), b"later");
    }

    #[test]
    fn who_has_files_written_waits_for_none_of_them() {
        let home = tempfile::tempdir().unwrap();
        let (go, gate) = mpsc::channel::<()>();
        let writer = started(home.path(), move || gate.recv().is_ok());
        let (one, other) = (writer.path("149.1"), writer.path("149.2"));
        writer.write(&one, b"first".to_vec());
        writer.write(&one, b"second".to_vec());
        writer.write(&other, b"another".to_vec());
        assert!(writer.is_busy(&one) && writer.is_busy(&other) && !one.exists());
        assert_eq!(writer.read(&one).unwrap(), b"second", "the next reader has what is to be written");
        (0..3).for_each(|_| go.send(()).unwrap());
        writer.finish();
        assert!(!writer.is_busy(&one) && !writer.is_busy(&other));
        assert_eq!((fs::read(&one).unwrap(), fs::read(&other).unwrap()), (b"second".to_vec(), b"another".to_vec()));
    }

    #[test]
    fn a_disk_that_hangs_does_not_hold_up_the_end() {
        let home = tempfile::tempdir().unwrap();
        let (go, gate) = mpsc::channel::<()>();
        let writer = started(home.path(), move || gate.recv().is_ok());
        writer.write(&writer.path("149.1"), Vec::new());
        let begin = std::time::Instant::now();
        writer.finish();
        assert!((PATIENCE..PATIENCE * 2).contains(&begin.elapsed()));
        drop(go);
    }

    #[test]
    fn a_file_that_is_anothers_by_now_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let may = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&may);
        let writer = started(home.path(), move || asked.load(Ordering::SeqCst));
        let path = writer.path("149.1");
        fs::write(&path, "of another").unwrap();
        writer.write(&path, b"own".to_vec());
        writer.finish();
        assert_eq!(fs::read(&path).unwrap(), b"of another");
        may.store(true, Ordering::SeqCst);
        writer.write(&path, b"own".to_vec());
        writer.finish();
        assert_eq!(fs::read(&path).unwrap(), b"own");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_until_it_can() {
        let home = tempfile::tempdir().unwrap();
        let writer = started(&home.path().join("not yet"), || true);
        let path = writer.path("149.1");
        for (has_failed, make) in [(true, false), (false, true)] {
            if make {
                fs::create_dir(home.path().join("not yet")).unwrap();
            }
            writer.write(&path, b"x".to_vec());
            writer.finish();
            assert_eq!((writer.has_failed(&path), path.exists()), (has_failed, make));
        }
    }
}
