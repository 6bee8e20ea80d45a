// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/process.h"
#include "tessera/base/text.h"

namespace tessera::files {
namespace {

[[noreturn]] void fail(std::string_view operation,
                       const fs::path& path,
                       int reason,
                       Where where = Where::here()) {
  std::string fix;
  if (reason == ENOENT) fix = "check the path; relative paths start at the working directory";
  if (reason == EACCES || reason == EPERM)
    fix = "check the permissions of the file and of its folder";
  if (reason == ENOSPC || reason == EDQUOT) fix = "free some disk space";
  if (reason == EMFILE) fix = "raise the limit on open files (ulimit -n)";
  if (reason == ENFILE) fix = "close other programs: this machine has no more open files";
  if (reason == ENOMEM) fix = "raise the limit on address space (ulimit -v), or free memory";
  throw Error(
      Error::Kind::Io,
      "cannot " + std::string(operation) + " " + path.string() + ": " + std::strerror(reason),
      fix,
      where);
}

// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const fs::path& path, int flags, mode_t mode = 0666)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct stat status_of(const Fd& fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("examine", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  return status;
}

/// Returns what is at a path, "a FIFO"; nothing for a file, a folder, or if there is nothing.
std::optional<std::string> other_than_file_or_folder(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return std::nullopt;
}

[[noreturn]] void refuse_kind(const fs::path& path, mode_t mode, const std::string& expected) {
  throw Error(Error::Kind::Io,
              path.string() + " is " + other_than_file_or_folder(mode).value_or("a file") +
                  ", and a " + expected + " is expected",
              S_ISLNK(mode) ? "remove the link, and name the place itself: rm " + path.string()
                            : "name a " + expected + ", or remove what is there");
}

/// Throws if `status` is not that of a file.
void require_file(const struct stat& status, const fs::path& path) {
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  if (other_than_file_or_folder(status.st_mode)) refuse_kind(path, status.st_mode, "file");
}

/// Opens without waiting for the other end of a FIFO, and refuses what is not a file.
Fd open_regular(const fs::path& path, int flags, mode_t mode) {
  Fd fd(path, flags | O_NONBLOCK, mode);
  if (!fd.ok()) {
    const int reason = errno;
    struct stat status {};
    // ENXIO: a FIFO without a reader, or a socket. ELOOP: a link that is not followed.
    const bool other = reason == ENXIO || reason == ELOOP;
    if (other && ::lstat(path.c_str(), &status) == 0) require_file(status, path);
    fail((flags & O_CREAT) != 0 ? "create" : "open", path, reason);
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("examine", path, errno);
  require_file(status, path);
  return fd;
}

void write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string read_all(int fd, const fs::path& path) {
  std::string out;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) return out;
    out.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

constexpr std::chrono::milliseconds kLockPoll{50};

// Tries to lock; returns whether the lock was free.
bool lock_now(const Fd& fd, const fs::path& path, int kind) {
  int result = 0;
  do {
    result = ::flock(fd.get(), kind | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EWOULDBLOCK) fail("lock", path, errno);
  return result == 0;
}

std::string owner_in(const Fd& fd, const fs::path& path) {
  return std::string(text::trim(read_all(fd.get(), path)));
}

std::string owner_here() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "host " + std::string(host.data()) + ", process ";
}

/// Returns the process that an owner's text names; 0 if that is on another host.
std::int64_t process_of(const std::string& owner) {
  const std::string here = owner_here();
  return owner.starts_with(here) ? std::atoll(owner.c_str() + here.size()) : 0;
}

bool still_at(const Fd& fd, const fs::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

fs::path folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

/// Returns the entries of `folder` whose name is `start`, followed by the number of a process that
/// has ended, followed by anything that `rest` accepts.
std::vector<fs::path> leftovers_of_ended_processes(const fs::path& folder,
                                                   const std::string& start,
                                                   bool (*rest)(std::string_view)) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(start)) continue;
    std::int64_t owner = 0;
    const auto [stop, error] =
        std::from_chars(name.data() + start.size(), name.data() + name.size(), owner);
    if (error != std::errc() || !rest(std::string_view(stop, name.data() + name.size()))) continue;
    if (owner > 0 && !is_running(owner)) found.push_back(at->path());
  }
  return found;
}

/// Marks a file or folder as in use for processes that cannot see this one, on another host or in
/// another container. Best effort: not every file system supports locks.
void mark_in_use(int fd) {
  static_cast<void>(::flock(fd, LOCK_EX | LOCK_NB));
}

bool in_use(const fs::path& path, int flags) {
  const Fd fd(path, flags | O_NOFOLLOW | O_NONBLOCK);
  return !fd.ok() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

constexpr const char* kDraft = ".tmp-";
constexpr const char* kTempDir = "tessera-";

void remove_stale_folders(const fs::path& base) {
  const auto has_unique_suffix = [](std::string_view rest) {
    return rest.size() == 7 && rest.front() == '-';
  };
  for (const fs::path& folder : leftovers_of_ended_processes(base, kTempDir, has_unique_suffix)) {
    struct stat status {};
    if (::lstat(folder.c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    if (in_use(folder, O_RDONLY | O_DIRECTORY)) continue;
    std::error_code ignored;  // a leftover folder does no harm
    fs::remove_all(folder, ignored);
  }
}

}  // namespace

std::string read(const fs::path& path) {
  const Fd fd(open_file(path));
  return read_all(fd.get(), path);
}

std::string read_stream(const fs::path& path) {
  const Fd fd(path, O_RDONLY);
  if (!fd.ok()) fail("open", path, errno);
  status_of(fd, path);
  return read_all(fd.get(), path);
}

int open_own(const fs::path& path, int flags, mode_t mode) {
  return open_regular(path, flags | O_NOFOLLOW, mode).release();
}

int open_file(const fs::path& path) {
  return open_regular(path, O_RDONLY, 0).release();
}

int create_own(const fs::path& path, mode_t mode) {
  // Another process may create the file again in the meantime.
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    const int kept = ::unlink(path.c_str()) == 0 ? 0 : errno;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0) return fd;
    if (errno != EEXIST) fail("create", path, errno);
    if (attempt == kAttempts) fail("create", path, kept != 0 ? kept : EEXIST);
  }
}

void require_own_file(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) require_file(status, path);
}

void require_own_folder(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return;
  if (!S_ISDIR(status.st_mode)) refuse_kind(folder, status.st_mode, "folder");
  std::error_code failed;  // a folder that cannot be listed is refused where it is used
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    struct stat entry {};
    if (::lstat(at->path().c_str(), &entry) != 0) continue;
    // A monitor may listen on a socket there; nothing opens it as a file.
    if (S_ISDIR(entry.st_mode) || S_ISSOCK(entry.st_mode)) continue;
    if (other_than_file_or_folder(entry.st_mode))
      refuse_kind(at->path(), entry.st_mode, "file or folder");
  }
}

void remove_stale_drafts(const fs::path& path) {
  const auto nothing = [](std::string_view rest) { return rest.empty(); };
  const std::string start = path.filename().string() + kDraft;
  for (const fs::path& draft : leftovers_of_ended_processes(folder_of(path), start, nothing)) {
    if (!in_use(draft, O_RDWR)) ::unlink(draft.c_str());
  }
}

void write_atomic(const fs::path& path, std::string_view content) {
  remove_stale_drafts(path);
  // The process number keeps concurrent writers of the same path apart.
  const fs::path temporary = path.string() + kDraft + std::to_string(::getpid());
  try {
    const Fd fd(create_own(temporary));
    mark_in_use(fd.get());
    write_all(fd.get(), content, temporary);
    if (::fsync(fd.get()) != 0) fail("sync", temporary, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      fail("rename a temporary file to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync(folder_of(path));
}

void sync(const fs::path& path) {
  const Fd fd(path, O_RDONLY);
  if (!fd.ok()) fail("open", path, errno);
  // Some file systems refuse to sync a folder; they order their metadata in another way.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != EROFS) fail("sync", path, errno);
}

std::uint64_t free_bytes(const fs::path& path) {
  // The path may not exist yet: its nearest existing ancestor is on the same disk.
  fs::path place = path.empty() ? fs::path(".") : path;
  struct statvfs status {};
  while (::statvfs(place.c_str(), &status) != 0) {
    const bool has_parent = place.has_relative_path() && folder_of(place) != place;
    if ((errno != ENOENT && errno != ENOTDIR) || !has_parent)
      fail("examine the disk of", path, errno);
    place = folder_of(place);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

TempDir::TempDir() {
  std::error_code reason;
  fs::path base = fs::temp_directory_path(reason);
  if (reason) base = "/tmp";
  remove_stale_folders(base);
  std::string pattern = (base / (kTempDir + std::to_string(::getpid()) + "-XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) fail("create a temporary folder in", base, errno);
  path_ = pattern;
  in_use_ = Fd(path_, O_RDONLY | O_DIRECTORY).release();
  mark_in_use(in_use_);
}

TempDir::~TempDir() {
  if (in_use_ >= 0) ::close(in_use_);
  std::error_code ignored;  // a destructor cannot report errors
  fs::remove_all(path_, ignored);
}

Mapped::Mapped(const fs::path& path) {
  const Fd fd(open_file(path));
  size_ = static_cast<std::size_t>(status_of(fd, path).st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) fail("map", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

Mapped::~Mapped() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::unique_ptr<Lock> Lock::try_acquire(const fs::path& path, std::string* owner) {
  for (;;) {
    Fd fd(open_own(path, O_RDWR | O_CREAT));
    if (!lock_now(fd, path, LOCK_EX)) {
      if (owner != nullptr) *owner = owner_in(fd, path);
      return nullptr;
    }
    // The previous owner may have removed the file in the meantime; the name then belongs to
    // another file.
    if (!still_at(fd, path)) continue;
    if (::ftruncate(fd.get(), 0) != 0) fail("write", path, errno);
    write_all(fd.get(), owner_here() + std::to_string(::getpid()) + "\n", path);
    return std::unique_ptr<Lock>(new Lock(fd.release(), path));
  }
}

std::unique_ptr<Lock> Lock::acquire(const fs::path& path,
                                    const Waiting& waiting,
                                    const std::function<void()>& poll,
                                    double told_after_s) {
  const double begin = now_s();
  double told_at = begin + told_after_s;
  for (std::string owner;;) {
    if (auto lock = try_acquire(path, &owner)) return lock;
    if (waiting && now_s() >= told_at) {
      const std::int64_t process = process_of(owner);
      waiting(process > 0 && process_state(process) == 'T'
                  ? fmt::format("{}, which a signal has stopped (kill -CONT {})", owner, process)
                  : owner);
      told_at = begin + 10.0 * std::max(told_after_s, now_s() - begin);
    }
    if (poll) poll();
    std::this_thread::sleep_for(kLockPoll);
  }
}

std::optional<std::string> Lock::holder(const fs::path& path) {
  std::error_code unknown;
  if (!fs::exists(fs::symlink_status(path, unknown))) return std::nullopt;
  const Fd fd(open_own(path, O_RDONLY));
  // A shared lock, so that concurrent queries do not see each other.
  if (lock_now(fd, path, LOCK_SH)) return std::nullopt;
  return owner_in(fd, path);
}

bool Lock::owner_is_gone(const std::string& owner) {
  const auto process = static_cast<pid_t>(process_of(owner));
  return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

void Lock::remove_file() noexcept {
  ::unlink(path_.c_str());
}

Lock::~Lock() {
  ::close(fd_);
}

fs::path cache_dir() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string own = variable("TESSERA_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "tessera";
  const std::string home = variable("HOME");
  if (home.empty() || ::access(home.c_str(), W_OK | X_OK) != 0) return ".cache";
  return fs::path(home) / ".cache" / "tessera";
}

std::string hex64(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4)
    out[i] = kDigits[value & 15];
  return out;
}

}  // namespace tessera::files
