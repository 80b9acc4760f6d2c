#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace stretto {

// The speed of one kind of link.
struct LinkSpeed {
  double bytes_per_second = 0;
  double latency = 0;  // seconds
};
struct LinkSetting {
  std::optional<LinkSpeed> intra;  // between ranks of a node; nullopt: not slowed down
  std::optional<LinkSpeed> inter;  // between nodes
  bool empty() const { return !intra && !inter; }
};

// Reads "intra=50GB/s,1us;inter=1Gb/s,20us"; either part may be left out. Throws Error(invalid_argument) naming the part
// that is wrong.
LinkSetting link_setting_from_text(const std::string& text);
// Reads STRETTO_NETWORK: "10Gb/s,20us".
LinkSpeed network_speed_from_text(const std::string& text);

}  // namespace stretto
