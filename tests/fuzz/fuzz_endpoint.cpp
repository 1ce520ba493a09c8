// Where a job meets: URLs, host and port, meeting files, and the variables that launchers set. The first byte says
// which.

#include "lockstep/distributed/rendezvous/meeting_file.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "lockstep/distributed/rendezvous/url.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::distributed;
using namespace lockstep::fuzz;

void url(const std::string& text) {
  const Url url = parse_url(text);
  require(text.starts_with(url.scheme + "://" + url.place));
  for (const auto& entry : url.query) {
    const std::string &key = entry.first, &value = entry.second;
    require(key == "rank" || key == "world_size");
    accepts([&] { require(number_in_url(value, key, text) >= 0); });
  }
  const HostAndPort endpoint = parse_host_and_port(url.place, text);
  require(!endpoint.host.empty() || url.place.starts_with("[]"));
  require(endpoint.port >= 0);
}

void meeting_file(const std::string& text) {
  const auto place = decode_meeting_place(text);
  if (!place) return;
  require(place->port > 0 && place->port < 65'536);
  const auto again = decode_meeting_place(encode(*place));
  require(again && again->port == place->port && again->token == place->token);
}

/// One NAME=value a line.
void launcher(std::string_view text) {
  lockstep::Environment environment;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) environment.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  const LauncherVariables found = read_launcher(environment);
  for (const auto& number : {found.rank, found.world_size, found.local_rank, found.master_port})
    require(!number || *number >= 0);
  require(!found.derived_port || (*found.derived_port >= 20'000 && *found.derived_port < 30'000));
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const int kind = input.byte() % 3;
  const std::string text(input.rest());
  accepts([&] {
    if (kind == 0) url(text);
    if (kind == 1) meeting_file(text);
    if (kind == 2) launcher(text);
  });
  return 0;
}
