#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep::distributed {

/// "scheme://place?key=value&...".
struct Url {
  std::string scheme;
  std::string place;
  std::map<std::string, std::string, std::less<>> query;  ///< rank and world_size
};

/// Throws Error for text that is no URL, and for unknown keys.
Url parse_url(const std::string& text);

struct HostAndPort {
  std::string host;  ///< without the brackets of [::1]
  int port = 0;
};

/// "host:port" of a tcp URL. Throws Error naming `url` otherwise. The port may be any whole number.
HostAndPort parse_host_and_port(std::string_view place, const std::string& url);

/// A whole number of a URL. Throws Error naming `what` and `url`.
int number_in_url(std::string_view text, std::string_view what, const std::string& url);

}  // namespace lockstep::distributed
