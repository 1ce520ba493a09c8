#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/core/own_process.h"
#include "lockstep/core/posix.h"
#include "lockstep/distributed/store/dictionary.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Who opens a FileStore, so that a later job can tell a file that a killed one left behind.
struct FileStoreOwner {
  std::string name;                                      ///< a line that no other process has
  std::function<bool(const std::string& name)> is_gone;  ///< whether the process of that name has ended for certain
};

/// A store in one file that all processes can reach, and that nobody else can: it is made with mode 0600, and a file
/// that is there already must be one of this user alone. Changes are appended under an exclusive flock; readers follow
/// the file under a shared one, so a file system with working flock is needed. A record that a killed writer left half
/// done is cut off by the next writer.
class FileStore final : public Store {
 public:
  /// Opens or makes the file. When `world_size` stores have been opened and closed, the last one deletes it; 0 keeps
  /// it. A file of which all owners are gone begins anew, unless it is one to be kept. Throws StoreError if it cannot
  /// be opened, is another kind of file or a symbolic link, belongs to or can be read or written by somebody else, or
  /// has served as many stores already.
  FileStore(std::string path, int world_size, Milliseconds timeout = Milliseconds(300'000),
            const FileStoreOwner& owner = {});
  /// Never throws; a file that cannot be deleted stays.
  ~FileStore() override;

  std::string describe() const override;

 protected:
  void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override;
  std::string do_get(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) override;
  std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                             Milliseconds timeout) override;
  void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_delete_key(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_num_keys(Milliseconds timeout) override;

 private:
  class Lock;
  void append(const std::string& key, const std::string* value);
  void open_file();
  /// False if the file that is open here has been deleted, or another one has its name now.
  bool has_name() const;
  void check_owner() const;
  /// With the exclusive lock held: empties a file all of whose owners are gone.
  void begin_anew_if_left_over(const FileStoreOwner& owner);
  /// Reads what others have appended. With the exclusive lock held, cuts off a half-done record.
  void read_changes(bool exclusive);
  /// Applies the whole records at the beginning of `chunk`; returns how many bytes they have. `next`: how much must be
  /// read for the record behind them to be whole.
  std::size_t take_records(std::string_view chunk, std::uint64_t* next);
  std::string read_at(std::uint64_t position, std::uint64_t bytes) const;
  std::uint64_t file_size() const;
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;
  int world_size_;
  OwnProcess made_in_;
  FileDescriptor fd_;
  std::mutex mutex_;
  Dictionary dictionary_;
  std::uint64_t position_ = 0;  // end of the last record read
};

}  // namespace lockstep::distributed
