#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "transport/bootstrap/socket.hpp"

// Two ranks prove to each other that they belong to one job: each answers the other's random challenge with a keyed hash
// (libsodium's crypto_auth, HMAC-SHA-512-256) under the job's secret, which itself never travels.
namespace stretto {

// A rank's data about itself.
struct RankIntroduction {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int64_t pid = 0;
  std::array<char, 64> host{};
};
RankIntroduction introduce(int rank, int size);

struct Arrival {
  RankIntroduction who;
  bool genuine = false;  // the other side knew the secret
};

// Rank 0's half. Takes at most a few seconds; the arrival is not genuine if the other side is silent, does not know the
// secret or speaks another version.
Arrival receive_arrival(const Socket& socket, const std::string& secret);
// Lets the rank in (empty refusal), or turns it away with a sentence.
void answer_arrival(const Socket& socket, const std::string& refusal);

// The other ranks' half; throws Error(unavailable) saying why rank 0 refused.
void arrive(const Socket& socket, const std::string& secret, const RankIntroduction& self, const std::string& address);

}  // namespace stretto
