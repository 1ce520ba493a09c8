#include "lockstep/distributed/rendezvous/url.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"

namespace lockstep::distributed {

int number_in_url(std::string_view text, std::string_view what, const std::string& url) {
  const auto value = parse_number<int>(text);
  LOCKSTEP_CHECK(value && *value >= 0, "[rendezvous] {} in '{}' is '{}'; expected a whole number", what, url, text);
  return *value;
}

Url parse_url(const std::string& text) {
  const std::size_t colon = text.find("://");
  LOCKSTEP_CHECK(colon != std::string::npos,
                 "[rendezvous] '{}' is no URL; expected env://, tcp://HOST:PORT or "
                 "file:///PATH",
                 text);
  Url url;
  url.scheme = text.substr(0, colon);
  const std::size_t question = text.find('?', colon);
  url.place = text.substr(colon + 3, question == std::string::npos ? question : question - colon - 3);
  std::string_view rest =
      question == std::string::npos ? std::string_view() : std::string_view(text).substr(question + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    LOCKSTEP_CHECK(equals != std::string_view::npos && (key == "rank" || key == "world_size"),
                   "[rendezvous] '{}' in '{}' is not understood; expected rank=R and world_size=W", pair, text);
    url.query.emplace(key, pair.substr(equals + 1));
  }
  return url;
}

HostAndPort parse_host_and_port(std::string_view place, const std::string& url) {
  const std::size_t colon = place.rfind(':');
  LOCKSTEP_CHECK(colon != std::string_view::npos && colon > 0,
                 "[rendezvous] '{}' names no host and port; expected tcp://HOST:PORT", url);
  std::string_view host = place.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::string(host), number_in_url(place.substr(colon + 1), "the port", url)};
}

}  // namespace lockstep::distributed
