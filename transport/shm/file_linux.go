package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A named file of shared memory is locked (flock) by who has made it, from before it has
// its name for as long as it is mapped there; the kernel takes the lock away from the
// dead. So a name without a lock was left behind by a process that was killed, and
// sweep removes it.
const filePrefix = "tutti-"

// fileTries bounds how often a new file may lose its name to somebody's sweep, who
// saw it in the moment before it was locked.
const fileTries = 4

// newFile makes a file of that many zero bytes, in the first directory that has
// room. Its blocks are there from the start: a full file system is an error here, not
// a fatal signal later.
func (w ways) newFile(size int, named bool) (*block, error) {
	var all error
	for dir, path := range w.dirs {
		m := &block{ticket: ticket{how: byFile, dir: byte(dir), number: newNonce()}, fd: -1}
		if named {
			m.how = byName
		}
		err := m.make(w.dirs, size, named)
		if err == nil {
			return m, nil
		}
		if err = fmt.Errorf("a file in %s: %w", path, err); all == nil {
			all = err
		} else {
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return nil, fmt.Errorf("%w; make room there, or set TMPDIR", all)
}

// make makes the file of a new block, whole or not at all.
func (m *block) make(dirs []string, size int, named bool) error {
	if err := m.create(dirs, named); err != nil {
		return err
	}
	if !named {
		m.unlink()
	}
	err := allocate(m.fd, size)
	if err == nil && named {
		err = m.name(dirs, size)
	}
	if err != nil {
		m.close()
	}
	return err
}

// name gives a file its name, or else has another one take its place that begins with one.
func (m *block) name(dirs []string, size int) error {
	why := m.link(dirs)
	if why == nil {
		return nil
	}
	unix.Close(m.fd) // no /proc, perhaps
	m.fd = -1
	if err := m.createNamed(dirs); err != nil {
		return fmt.Errorf("%w; a nameless file got no name: %w", err, why)
	}
	return allocate(m.fd, size)
}

// fillStep is how much of a file gets its blocks at a time: a signal has the kernel undo
// the whole of what it was asked for.
const fillStep = 16 << 20

// allocate gives a file, or memory without one, its blocks.
func allocate(fd, size int) error {
	for at := 0; at < size; {
		err := unix.Fallocate(fd, 0, int64(at), int64(min(fillStep, size-at)))
		switch err {
		case nil:
			at += fillStep
		case unix.EINTR:
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
	return nil
}

// create opens a new file, locked if it is to have a name: without one for now, where
// the file system can do that.
func (m *block) create(dirs []string, named bool) error {
	fd, err := unix.Open(dirs[m.dir], unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return m.createNamed(dirs)
	}
	if named {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			unix.Close(fd)
			return os.NewSyscallError("flock", err)
		}
	}
	m.fd = fd
	return nil
}

// createNamed opens a new file, locked, that has its name already.
func (m *block) createNamed(dirs []string) error {
	for range fileTries {
		m.number = newNonce()
		path, err := m.ticket.path(dirs)
		if err != nil {
			return err
		}
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		m.fd, m.path = fd, path
		if m.lock() {
			return nil
		}
		m.close()
	}
	return errors.New("others remove the file before it is locked")
}

// lock locks a file that has a name, and reports whether it has it still.
func (m *block) lock() bool {
	var st unix.Stat_t
	return unix.Flock(m.fd, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Fstat(m.fd, &st) == nil && st.Nlink == 1
}

// link gives a file its name, unless it has one, when those that were left behind
// are swept away.
func (m *block) link(dirs []string) error {
	sweep(dirs[m.dir])
	if m.path != "" {
		return nil
	}
	path, err := m.ticket.path(dirs)
	if err != nil {
		return err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", m.fd)
	if err := unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return os.NewSyscallError("linkat", err)
	}
	m.path = path
	return nil
}

// openFile opens a file that a peer has named, and holds it to what it has to be.
func (w ways) openFile(tk ticket, size int) (int, error) {
	path, err := tk.path(w.dirs)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, notOpened(err, path)
	}
	if err = validateMemory(fd, size, false); err == nil {
		err = checkOwner(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

// notOpened says why there is no file for this process where a peer has named one, and
// what helps, in the first reasonRoom bytes.
func notOpened(err error, path string) error {
	if more := moreDescriptors(err); more != "" {
		return fmt.Errorf("%s: %w; no room for %s", more, err, path)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("share /dev/shm and TMPDIR, or pass descriptors; there is no %s: %w", path, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("run all ranks as one user: %w: %s", err, path)
	case errors.Is(err, unix.ELOOP): // no rank makes one, so another program has
		return fmt.Errorf("remove the link %s: %w", path, err)
	}
	return fmt.Errorf("%w: %s", err, path)
}

// checkOwner holds a file to be this user's alone.
func checkOwner(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if me := os.Geteuid(); int(st.Uid) != me || st.Mode&0o7777 != 0o600 {
		return fmt.Errorf("it is of user %d with mode %#o, not of user %d with 0600", st.Uid, st.Mode&0o7777, me)
	}
	if st.Nlink > 1 {
		return fmt.Errorf("it has %d names", st.Nlink)
	}
	return nil
}

// removeFile takes away the name of a file that this process has opened.
func (w ways) removeFile(tk ticket) {
	if path, err := tk.path(w.dirs); err == nil && tk.how == byName {
		unix.Unlink(path) // who has made it may have been quicker
	}
}

// sweep removes the files in a directory that this user's processes have left when
// they were killed.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), filePrefix)
		if b, err := hex.DecodeString(number); !ours || err != nil || len(b) != len(nonce{}) || !e.Type().IsRegular() {
			continue
		}
		fd, err := unix.Open(dir+"/"+e.Name(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if checkOwner(fd) == nil && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			unix.Unlink(dir + "/" + e.Name())
		}
		unix.Close(fd)
	}
}
