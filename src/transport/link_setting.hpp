#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace stretto {

// What a setting says of one kind of link.
struct LinkSpeed {
  double bytes_per_second = 0;
  double latency = 0;  // seconds
};
struct LinkSetting {
  std::optional<LinkSpeed> intra;  // between ranks of a node; none: as fast as they are
  std::optional<LinkSpeed> inter;  // between nodes
  bool empty() const { return !intra && !inter; }
};

// Reads "intra=50GB/s,1us;inter=1Gb/s,20us"; either part may be left out. Throws Error(invalid_argument) that names what is
// wrong.
LinkSetting link_setting_from_text(const std::string& text);
// The same of STRETTO_NETWORK: "10Gb/s,20us".
LinkSpeed network_speed_from_text(const std::string& text);

}  // namespace stretto
