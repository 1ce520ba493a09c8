#include "lockstep/distributed/store/request_handler.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

using Clock = std::chrono::steady_clock;

void respond_integer(ServerConnection& connection, std::uint64_t value) {
  std::string body(8, '\0');
  for (int i = 0; i < 8; ++i) body[static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i) & 0xff);
  connection.respond(wire::Status::ok, body);
}

void respond_bool(ServerConnection& connection, bool value) {
  connection.respond(wire::Status::ok, {value ? "\1" : "\0", 1});
}

Milliseconds read_timeout(wire::Reader& fields) {
  constexpr std::uint64_t kLongest = 400ull * 24 * 3600 * 1000;
  return Milliseconds(std::min(fields.integer(), kLongest));
}

std::string read_key(wire::Reader& fields) {
  std::string key = fields.bytes();
  if (key.empty() || key.size() > Store::kMaxKeyBytes)
    throw StoreError(fmt::format("it names a key of {} bytes; 1 to {} are allowed", key.size(), Store::kMaxKeyBytes));
  return key;
}

std::string read_value(wire::Reader& fields) {
  std::string value = fields.bytes();
  if (value.size() > Store::kMaxValueBytes)
    throw StoreError(
        fmt::format("it sends a value of {} bytes; at most {} are allowed", value.size(), Store::kMaxValueBytes));
  return value;
}

std::vector<std::string> read_keys(wire::Reader& fields) {
  const std::uint64_t count = fields.integer();
  if (count > Store::kMaxWaitKeys) throw StoreError(fmt::format("it names {} keys at once", count));
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < count; ++i) keys.push_back(read_key(fields));
  return keys;
}

void expect_end(const wire::Reader& fields) {
  if (!fields.at_end()) throw StoreError("a message is longer than its fields say");
}

}  // namespace

bool RequestHandler::handle(ServerConnection& connection, std::string_view payload) {
  wire::Reader fields(payload);
  switch (static_cast<wire::Request>(fields.byte())) {
    case wire::Request::set: {
      const std::string key = read_key(fields);
      const std::string value = read_value(fields);
      expect_end(fields);
      if (!has_room(connection, key, value)) return false;
      dictionary_.set(key, value);
      connection.respond(wire::Status::ok, {});
      return true;
    }
    case wire::Request::get: {
      const Milliseconds timeout = read_timeout(fields);
      std::string key = read_key(fields);
      expect_end(fields);
      connection.start_wait({{std::move(key)}, deadline_in(timeout), true});
      finish_wait(connection, Clock::now());
      return false;
    }
    case wire::Request::add: {
      const std::string key = read_key(fields);
      const auto delta = static_cast<std::int64_t>(fields.integer());
      expect_end(fields);
      if (!has_room(connection, key, "-9223372036854775808")) return false;
      try {
        respond_integer(connection, static_cast<std::uint64_t>(dictionary_.add(key, delta)));
      } catch (const StoreError& error) {
        connection.respond(wire::Status::error, error.what());
        return false;
      }
      return true;
    }
    case wire::Request::compare_set: {
      const std::string key = read_key(fields);
      const std::string expected = read_value(fields);
      const std::string desired = read_value(fields);
      expect_end(fields);
      if (!has_room(connection, key, desired)) return false;
      connection.respond(wire::Status::ok, dictionary_.compare_set(key, expected, desired));
      return true;
    }
    case wire::Request::wait: {
      const Milliseconds timeout = read_timeout(fields);
      std::vector<std::string> keys = read_keys(fields);
      expect_end(fields);
      connection.start_wait({std::move(keys), deadline_in(timeout), false});
      finish_wait(connection, Clock::now());
      return false;
    }
    case wire::Request::check: {
      const std::vector<std::string> keys = read_keys(fields);
      expect_end(fields);
      respond_bool(connection, !dictionary_.first_missing(keys));
      return false;
    }
    case wire::Request::erase: {
      const std::string key = read_key(fields);
      expect_end(fields);
      respond_bool(connection, dictionary_.erase(key));
      return false;
    }
    case wire::Request::num_keys:
      expect_end(fields);
      respond_integer(connection, static_cast<std::uint64_t>(dictionary_.size()));
      return false;
  }
  throw StoreError("it sent an unknown request");
}

void RequestHandler::finish_wait(ServerConnection& connection, Deadline now) {
  const ServerConnection::Wait& wait = *connection.waiting();
  if (const std::string* missing = dictionary_.first_missing(wait.keys)) {
    if (now < wait.deadline) return;
    connection.respond(wire::Status::timeout, *missing);
  } else {
    connection.respond(wire::Status::ok, wait.wants_value ? *dictionary_.find(wait.keys[0]) : std::string());
  }
  connection.end_wait();
}

/// Answers an error and returns false if storing this would take too much memory.
bool RequestHandler::has_room(ServerConnection& connection, std::string_view key, std::string_view value) const {
  if (dictionary_.bytes() + key.size() + value.size() <= max_bytes_) return true;
  connection.respond(wire::Status::error, fmt::format("[TCPStore] is full: {} of {} bytes are taken; cannot set '{}'",
                                                      dictionary_.bytes(), max_bytes_, key));
  return false;
}

}  // namespace lockstep::distributed
