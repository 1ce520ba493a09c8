#include "lockstep/distributed/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::distributed {
namespace {

// The file: kMagic, then records of key length, value length (kDeleted: no value) and the bytes of both.
constexpr std::string_view kMagic = "lockstep-file-store-1\n";
constexpr std::uint64_t kDeleted = ~std::uint64_t{0};
constexpr std::size_t kRecordHead = 16;
// What is read at a time, where no record is longer.
constexpr std::uint64_t kChunk = std::uint64_t{1} << 16;
// How long a store that closes waits for the lock.
constexpr Milliseconds kLeaveTimeout{2'000};

// Keys of the store's own; user keys cannot start like this through PrefixStore, and need not otherwise.
constexpr const char* kOpened = "\1opened";
constexpr const char* kClosed = "\1closed";
constexpr const char* kOwners = "\1owners";  // a line each

}  // namespace

/// Holds the file's flock. Two stores of one process are two open files, so they exclude each other as well.
class FileStore::Lock {
 public:
  Lock(FileStore& store, bool exclusive, Milliseconds timeout) : fd_(store.fd_.get()) {
    const Deadline deadline = deadline_in(timeout);
    auto pause = std::chrono::microseconds(50);
    while (flock(fd_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) store.fail("flock", errno);
      if (has_passed(deadline))
        throw TimeoutError(
            fmt::format("[{}] another process holds the file's lock for {} ms", store.describe(), timeout.count()));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(5'000));
    }
    store.read_changes(exclusive);
  }
  ~Lock() { flock(fd_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_;
};

FileStore::FileStore(std::string path, int world_size, Milliseconds timeout, const FileStoreOwner& owner)
    : path_(std::move(path)), world_size_(world_size) {
  set_timeout(timeout);
  const Deadline deadline = deadline_in(timeout);
  open_file();
  auto lock = std::make_unique<Lock>(*this, true, timeout);
  while (!has_name()) {  // the last process of the job before has deleted it
    if (has_passed(deadline))
      throw TimeoutError(fmt::format("[{}] was deleted again and again for {} ms", describe(), timeout.count()));
    lock.reset();
    dictionary_ = {};
    position_ = 0;
    open_file();
    lock = std::make_unique<Lock>(*this, true, timeout);
  }
  const bool tells_owners = world_size_ > 0 && owner.is_gone;
  if (tells_owners) begin_anew_if_left_over(owner);
  const std::int64_t opened = dictionary_.add(kOpened, 1);
  if (world_size_ > 0 && opened > world_size_)
    throw StoreError(
        fmt::format("[{}] has served {} processes already, and the job has {}: it is left over from an "
                    "earlier run, or in use by another; delete it or name another file",
                    describe(), opened - 1, world_size_));
  append(kOpened, dictionary_.find(kOpened));
  if (!tells_owners) return;
  const std::string* const before = dictionary_.find(kOwners);
  const std::string owners = (before ? *before : std::string()) + owner.name + '\n';
  append(kOwners, &owners);
}

FileStore::~FileStore() {
  if (!made_in_.is_here()) return;  // it is the parent that has not left
  try {
    const std::lock_guard guard(mutex_);
    const Lock lock(*this, true, std::min(timeout(), kLeaveTimeout));
    const std::int64_t closed = dictionary_.add(kClosed, 1);
    append(kClosed, dictionary_.find(kClosed));
    if (world_size_ > 0 && closed == world_size_ && unlink(path_.c_str()) != 0)
      logging::warn("[{}] cannot be deleted: {}", describe(), std::strerror(errno));
  } catch (const std::exception& error) {
    logging::warn("{}", error.what());
  }
}

std::string FileStore::describe() const {
  return fmt::format("FileStore {}", path_);
}

void FileStore::begin_anew_if_left_over(const FileStoreOwner& owner) {
  const std::string* const owners = dictionary_.find(kOwners);
  const std::string* const opened = dictionary_.find(kOpened);
  if (!owners || !opened) return;
  std::int64_t count = 0;
  for (std::size_t at = 0, end = 0; (end = owners->find('\n', at)) != std::string::npos; at = end + 1, ++count)
    if (!owner.is_gone(owners->substr(at, end - at))) return;
  // One that has opened it and is not among the owners may still use it.
  if (count == 0 || *opened != std::to_string(count)) return;
  logging::warn("[{}] was left over by {} process(es) that have ended; it begins anew", describe(), count);
  if (ftruncate(fd_.get(), 0) != 0) fail("truncate", errno);
  dictionary_ = {};
  position_ = 0;
}

void FileStore::open_file() {
  // O_NONBLOCK: a pipe of that name must not be waited for.
  fd_.reset(open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd_ && errno == ELOOP)
    throw StoreError(
        fmt::format("[{}] is a symbolic link; name the file itself, so that nobody else can choose it", describe()));
  if (!fd_) fail("open", errno);
  check_owner();
}

bool FileStore::has_name() const {
  struct stat by_name {
  }, opened{};
  if (fstat(fd_.get(), &opened) != 0) fail("stat", errno);
  if (lstat(path_.c_str(), &by_name) != 0) {
    if (errno == ENOENT) return false;
    fail("stat", errno);
  }
  return by_name.st_ino == opened.st_ino && by_name.st_dev == opened.st_dev;
}

void FileStore::check_owner() const {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0) fail("stat", errno);
  if (!S_ISREG(info.st_mode))
    throw StoreError(fmt::format("[{}] exists and is no regular file; name another file", describe()));
  if (info.st_uid != geteuid())
    throw StoreError(
        fmt::format("[{}] belongs to the user with the number {}, and this process runs as {}; name "
                    "another file, best in a folder that nobody else can write to",
                    describe(), info.st_uid, geteuid()));
  if ((info.st_mode & 077) != 0)
    throw StoreError(
        fmt::format("[{}] can be read or written by others (mode {:o}), who would get into the job; chmod "
                    "600 it, or name another file",
                    describe(), info.st_mode & 07777));
}

void FileStore::do_set(const std::string& key, const std::string& value, Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, true, timeout);
  append(key, &value);
}

std::string FileStore::do_get(const std::string& key, Milliseconds timeout) {
  do_wait({key}, timeout);
  const std::lock_guard guard(mutex_);
  const std::string* value = dictionary_.find(key);
  if (!value) throw StoreError(fmt::format("[{}] key '{}' was deleted while being read", describe(), key));
  return *value;
}

std::int64_t FileStore::do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, true, timeout);
  const std::int64_t sum = add_to_counter(key, dictionary_.find(key), delta);
  const std::string text = std::to_string(sum);
  append(key, &text);
  return sum;
}

std::string FileStore::do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                      Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, true, timeout);
  const std::string* value = dictionary_.find(key);
  std::string current = value ? *value : std::string();
  if (current != expected) return current;
  append(key, &desired);
  return desired;
}

void FileStore::do_wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  const Deadline deadline = deadline_in(timeout);
  auto pause = std::chrono::microseconds(200);
  for (;;) {
    {
      const std::lock_guard guard(mutex_);
      if (file_size() != position_) const Lock lock(*this, false, timeout);
      const std::string* missing = dictionary_.first_missing(keys);
      if (!missing) return;
      if (has_passed(deadline)) throw TimeoutError(timeout_message(describe(), *missing, timeout.count()));
    }
    // There is no portable way to be told of a change on a network file system.
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline - std::chrono::steady_clock::now());
    std::this_thread::sleep_for(std::clamp(left, std::chrono::microseconds(0), pause));
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
}

bool FileStore::do_check(const std::vector<std::string>& keys, Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, false, timeout);
  return !dictionary_.first_missing(keys);
}

bool FileStore::do_delete_key(const std::string& key, Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, true, timeout);
  if (!dictionary_.find(key)) return false;
  append(key, nullptr);
  return true;
}

std::int64_t FileStore::do_num_keys(Milliseconds timeout) {
  const std::lock_guard guard(mutex_);
  const Lock lock(*this, false, timeout);
  std::int64_t own = 0;
  for (const char* const key : {kOpened, kClosed, kOwners}) own += dictionary_.find(key) ? 1 : 0;
  return dictionary_.size() - own;
}

void FileStore::append(const std::string& key, const std::string* value) {
  std::string record;
  if (position_ == 0) record = kMagic;
  const auto add_integer = [&](std::uint64_t number) {
    for (int i = 0; i < 8; ++i) record += static_cast<char>(number >> (8 * i) & 0xff);
  };
  add_integer(key.size());
  add_integer(value ? value->size() : kDeleted);
  record += key;
  if (value) record += *value;
  if (!write_all(fd_.get(), record.data(), record.size())) fail("write", errno);
  read_changes(true);
}

void FileStore::read_changes(bool exclusive) {
  const std::uint64_t end = file_size();
  if (end == position_) return;
  if (end < position_) throw StoreError(fmt::format("[{}] was cut short by another program", describe()));
  if (position_ == 0) {
    const std::string start = read_at(0, std::min<std::uint64_t>(end, kMagic.size()));
    if (!kMagic.starts_with(start))
      throw StoreError(fmt::format("[{}] exists and is no store; name another file", describe()));
    if (start.size() == kMagic.size()) position_ = kMagic.size();
  }
  // Memory is taken for a chunk, or for one record whose lengths have been checked.
  for (std::uint64_t next = kChunk; position_ >= kMagic.size() && end - position_ >= kRecordHead;) {
    const std::uint64_t left = end - position_, asked = std::min(left, next);
    const std::string chunk = read_at(position_, asked);
    const std::size_t used = take_records(chunk, &next);
    position_ += used;
    if (used == 0 && (asked == left || chunk.size() < asked)) break;  // the last record is not whole
  }
  if (exclusive && position_ < end && ftruncate(fd_.get(), static_cast<off_t>(position_)) != 0) fail("truncate", errno);
}

std::size_t FileStore::take_records(std::string_view chunk, std::uint64_t* next) {
  std::size_t used = 0;
  for (*next = kChunk; chunk.size() - used >= kRecordHead;) {
    const char* const record = chunk.data() + used;
    const std::uint64_t key_bytes = wire::decode_integer(record);
    const std::uint64_t value_bytes = wire::decode_integer(record + 8);
    const bool deleted = value_bytes == kDeleted;
    if (key_bytes == 0 || key_bytes > 2 * kMaxKeyBytes || (!deleted && value_bytes > kMaxValueBytes))
      throw StoreError(fmt::format("[{}] is damaged at offset {}: a record claims a key of {} bytes and a value of {}",
                                   describe(), position_ + used, key_bytes, value_bytes));
    const std::size_t bytes = kRecordHead + key_bytes + (deleted ? 0 : value_bytes);
    if (bytes > chunk.size() - used) {
      *next = std::max(kChunk, static_cast<std::uint64_t>(bytes));
      break;
    }
    const std::string key(record + kRecordHead, key_bytes);
    if (deleted)
      dictionary_.erase(key);
    else
      dictionary_.set(key, std::string(record + kRecordHead + key_bytes, value_bytes));
    used += bytes;
  }
  return used;
}

std::string FileStore::read_at(std::uint64_t position, std::uint64_t bytes) const {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  const std::int64_t got = read_all_at(fd_.get(), text.data(), text.size(), position);
  if (got < 0) fail("read", errno);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

std::uint64_t FileStore::file_size() const {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0) fail("stat", errno);
  return static_cast<std::uint64_t>(info.st_size);
}

void FileStore::fail(const char* what, int error) const {
  throw StoreError(fmt::format("[{}] {}: {}; the path must be on a disk that all processes can write to", describe(),
                               what, std::strerror(error)));
}

}  // namespace lockstep::distributed
