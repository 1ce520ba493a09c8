#pragma once

// JSON lines written with nothing but write(2), so that a signal handler may do it. For .cpp files only.

#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/core/posix.h"
#include "lockstep/distributed/failure/flight_recorder.h"

namespace lockstep::distributed {

class DumpWriter {
 public:
  explicit DumpWriter(int file) : file_(file) {}
  ~DumpWriter() { flush(); }
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  DumpWriter& text(std::string_view text) {
    for (const char c : text) put(c);
    return *this;
  }
  DumpWriter& integer(std::int64_t value) {
    char digits[20];
    int count = 0;
    auto rest = value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
    do digits[count++] = static_cast<char>('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0) put('-');
    while (count > 0) put(digits[--count]);
    return *this;
  }
  DumpWriter& quoted(std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    put('"');
    for (const char c : text) {
      if (c == '"' || c == '\\') put('\\');
      if (static_cast<unsigned char>(c) < 0x20) {
        this->text("\\u00");
        put(kHex[static_cast<unsigned char>(c) >> 4]);
        put(kHex[c & 15]);
      } else {
        put(c);
      }
    }
    put('"');
    return *this;
  }
  DumpWriter& field(std::string_view name, std::int64_t value) {
    return text(",").quoted(name).text(":").integer(value);
  }
  DumpWriter& field(std::string_view name, std::string_view value) {
    return text(",").quoted(name).text(":").quoted(value);
  }
  DumpWriter& field(std::string_view name, const Shape& sizes) {
    text(",").quoted(name).text(":[");
    for (int i = 0; i < sizes.dim() && i < Shape::kMaxDims; ++i) text(i > 0 ? "," : "").integer(sizes[i]);
    return text("]");
  }

  /// False if something could not be written.
  bool flush() {
    good_ = write_all(file_, buffer_.data(), used_) && good_;
    used_ = 0;
    return good_;
  }

 private:
  void put(char c) {
    if (used_ == buffer_.size()) flush();
    buffer_[used_++] = c;
  }

  int file_;
  std::array<char, 4096> buffer_;
  std::size_t used_ = 0;
  bool good_ = true;
};

inline std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

inline void write_header(DumpWriter& out, const FlightRecorder& recorder, std::string_view reason) {
  out.text("{\"dump\":").quoted(reason).field("rank", recorder.rank()).field("world_size", recorder.world_size());
  out.field("pid", ::getpid()).field("steady_ns", clock_ns(CLOCK_MONOTONIC));
  out.field("wall_ns", clock_ns(CLOCK_REALTIME)).text("}\n");
}

inline void write_record(DumpWriter& out, int rank, const OperationRecord& record) {
  const OperationInfo& operation = record.operation;
  out.text("{\"rank\":").integer(rank).field("id", static_cast<std::int64_t>(record.id));
  out.field("operation", name(operation.kind)).field("number", static_cast<std::int64_t>(operation.number));
  out.field("reduce", name(operation.reduce)).field("peer", operation.peer).field("label", operation.label.text());
  out.field("step", operation.step).field("dtype", name(operation.dtype)).field("input", record.input_sizes);
  out.field("output", record.output_sizes).field("state", name(record.state)).field("queued_ns", record.queued_ns);
  out.field("started_ns", record.started_ns).field("finished_ns", record.finished_ns).text("}\n");
}

}  // namespace lockstep::distributed
