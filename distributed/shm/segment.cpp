#include "lockstep/distributed/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::distributed::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::string_view kName = "lockstep-ranks";
constexpr std::size_t kWordBytes = 32;
// All rings together, but for the least that one ring must have.
constexpr std::size_t kRingsBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxRingBytes = std::size_t{4} << 20;
constexpr std::size_t kMinRingBytes = std::size_t{64} << 10;

struct Header {
  std::array<char, kWordBytes> word;
  std::uint64_t world_size;
  std::uint64_t ring_bytes;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::string link_target(const std::string& path) {
  std::array<char, 256> text;
  const ssize_t length = readlink(path.c_str(), text.data(), text.size());
  LOCKSTEP_CHECK(length > 0, "[shm] cannot read {}: {}", path, std::strerror(errno));
  return std::string(text.data(), static_cast<std::size_t>(length));
}

/// Equal for two processes if they see the same PIDs and the same network.
std::string place() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  LOCKSTEP_CHECK(!boot.empty(), "[shm] cannot read /proc/sys/kernel/random/boot_id");
  return boot + "/" + link_target("/proc/self/ns/pid") + "/" + link_target("/proc/self/ns/net");
}

std::string random_word() {
  std::array<unsigned char, kWordBytes / 2> bytes;
  LOCKSTEP_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
                 "[shm] the system gives no random bytes: {}", std::strerror(errno));
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Segment::Segment(int world_size) : world_size_(world_size) {
  LOCKSTEP_CHECK(world_size >= 2 && world_size <= kMaxRanks, "[shm] {} ranks; expected 2 to {}", world_size, kMaxRanks);
  const auto pairs = static_cast<std::size_t>(world_size) * static_cast<std::size_t>(world_size - 1);
  ring_bytes_ = std::clamp(std::bit_floor(kRingsBytes / pairs), kMinRingBytes, kMaxRingBytes);
}

Segment Segment::create(int world_size) {
  Segment segment(world_size);
  FileDescriptor file(memfd_create(kName.data(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  LOCKSTEP_CHECK(file, "[shm] cannot make a segment: {}", std::strerror(errno));
  const FileSizeErrors errors_only;
  // Sealed, so that no rank's access can fall behind the end of a file that another one has cut.
  LOCKSTEP_CHECK(ftruncate(file.get(), static_cast<off_t>(segment.bytes())) == 0 &&
                     fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
                 "[shm] cannot make a segment of {} bytes: {}", segment.bytes(), std::strerror(errno));
  segment.map(file.get());
  const std::string word = random_word();
  Header header{{}, static_cast<std::uint64_t>(world_size), segment.ring_bytes_};
  std::copy(word.begin(), word.end(), header.word.begin());
  std::memcpy(segment.base_, &header, sizeof(header));
  segment.ticket_ = fmt::format("{} {} {} {}", place(), getpid(), file.get(), word);
  segment.file_ = std::move(file);
  return segment;
}

Segment Segment::open(std::string_view ticket, int world_size) {
  std::istringstream fields{std::string(ticket)};
  std::string where, word;
  int pid = 0, number = -1;
  fields >> where >> pid >> number >> word;
  LOCKSTEP_CHECK(fields && pid > 0 && number >= 0 && word.size() == kWordBytes, "[shm] not a ticket: '{}'", ticket);
  LOCKSTEP_CHECK(where == place(), "[shm] rank 0 is on another machine, or in another PID or network namespace");
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, number);
  LOCKSTEP_CHECK(link_target(path).starts_with(fmt::format("/memfd:{}", kName)), "[shm] {} is no segment of ours",
                 path);
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  LOCKSTEP_CHECK(file, "[shm] cannot open {}: {}", path, std::strerror(errno));
  Segment segment(world_size);
  struct stat status {};
  LOCKSTEP_CHECK(fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                     static_cast<std::size_t>(status.st_size) == segment.bytes() &&
                     (fcntl(file.get(), F_GET_SEALS) & F_SEAL_SHRINK) != 0,
                 "[shm] {} is not a segment for {} ranks", path, world_size);
  segment.map(file.get());
  Header header;
  std::memcpy(&header, segment.base_, sizeof(header));
  LOCKSTEP_CHECK(std::equal(word.begin(), word.end(), header.word.begin()) &&
                     header.world_size == static_cast<std::uint64_t>(world_size) &&
                     header.ring_bytes == segment.ring_bytes_,
                 "[shm] {} is the segment of another group", path);
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : world_size_(other.world_size_),
      ring_bytes_(other.ring_bytes_),
      base_(std::exchange(other.base_, nullptr)),
      file_(std::move(other.file_)),
      ticket_(std::move(other.ticket_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(world_size_, other.world_size_);
  std::swap(ring_bytes_, other.ring_bytes_);
  std::swap(base_, other.base_);
  std::swap(file_, other.file_);
  std::swap(ticket_, other.ticket_);
  return *this;
}

Segment::~Segment() {
  if (base_) munmap(base_, bytes());
}

void Segment::map(int fd) {
  void* memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  LOCKSTEP_CHECK(memory != MAP_FAILED, "[shm] cannot map {} bytes: {}", bytes(), std::strerror(errno));
  base_ = static_cast<std::byte*>(memory);
}

std::size_t Segment::bytes() const {
  const auto world = static_cast<std::size_t>(world_size_);
  return kPage + whole_pages(world * sizeof(RankControl)) + whole_pages(world * world * sizeof(RingControl)) +
         world * (world - 1) * ring_bytes_;
}

RankControl& Segment::rank(int rank) const {
  // The file was all zeros, which is what these atomics start with.
  return reinterpret_cast<RankControl*>(base_ + kPage)[rank];
}

RingControl& Segment::ring(int from, int to) const {
  const std::size_t ranks = whole_pages(static_cast<std::size_t>(world_size_) * sizeof(RankControl));
  return reinterpret_cast<RingControl*>(base_ + kPage + ranks)[from * world_size_ + to];
}

std::byte* Segment::ring_data(int from, int to) const {
  const auto world = static_cast<std::size_t>(world_size_);
  std::byte* const rings = base_ + bytes() - world * (world - 1) * ring_bytes_;
  const auto index = static_cast<std::size_t>(from * (world_size_ - 1) + (to < from ? to : to - 1));
  return rings + index * ring_bytes_;
}

}  // namespace lockstep::distributed::shm
