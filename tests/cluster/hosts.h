#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace lockstep::testing {

/// Network namespaces that stand for machines: each has a loopback interface of its own and one address in a subnet of
/// its own, and reaches the others through a router, which is one more namespace. Needs root; see works().
class Hosts {
 public:
  explicit Hosts(int count) : name_("lsh" + std::to_string(getpid() % 10'000)), count_(count) {
    works_ = run("ip netns add " + name_ + "r") && run("ip -n " + name_ + "r link set lo up") &&
             run("ip netns exec " + name_ + "r sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'");
    for (int i = 0; i < count && works_; ++i) {
      const std::string host = name(i);
      works_ = run("ip netns add " + host) && run("ip -n " + host + " link set lo up") &&
               run("ip -n " + name_ + "r link add " + host + " type veth peer name eth0 netns " + host) &&
               run("ip -n " + name_ + "r addr add " + gateway(i) + "/24 dev " + host) &&
               run("ip -n " + name_ + "r link set " + host + " up") &&
               run("ip -n " + host + " addr add " + address(i) + "/24 dev eth0") &&
               run("ip -n " + host + " link set eth0 up") &&
               run("ip -n " + host + " route add default via " + gateway(i));
    }
  }
  ~Hosts() {
    for (int i = 0; i < count_; ++i) run("ip netns del " + name(i));
    run("ip netns del " + name_ + "r");
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// False where namespaces cannot be made.
  bool works() const { return works_; }
  std::string address(int host) const { return "10.78." + std::to_string(host + 1) + ".2"; }
  /// Words before a program that is to run there.
  std::vector<std::string> inside(int host) const { return {"ip", "netns", "exec", name(host)}; }

 private:
  std::string name(int host) const { return name_ + std::to_string(host); }
  static std::string gateway(int host) { return "10.78." + std::to_string(host + 1) + ".1"; }
  static bool run(const std::string& command) { return std::system(("{ " + command + "; } 2>/dev/null").c_str()) == 0; }

  std::string name_;
  int count_;
  bool works_ = false;
};

}  // namespace lockstep::testing
