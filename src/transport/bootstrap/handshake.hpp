#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "transport/bootstrap/socket.hpp"

// How two ranks show each other that they belong to one job: each answers the other's random challenge with a keyed hash
// (libsodium's crypto_auth, HMAC-SHA-512-256) under the job's secret, which itself never travels.
namespace stretto {

struct Introduction {  // what a rank says of itself
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int64_t pid = 0;
  std::array<char, 64> host{};
};
Introduction introduce(int rank, int size);

struct Arrival {
  Introduction who;
  bool genuine = false;  // knew the secret
};

// Rank 0's half. Takes at most a few seconds; not genuine when the other side is silent, a stranger or speaks another
// version.
Arrival receive_arrival(const Socket& socket, const std::string& secret);
// Lets the arrival in (empty) or turns it away with a sentence.
void answer_arrival(const Socket& socket, const std::string& refusal);

// The other ranks' half; throws Error(unavailable) saying why rank 0 refused.
void arrive(const Socket& socket, const std::string& secret, const Introduction& self, const std::string& address);

}  // namespace stretto
