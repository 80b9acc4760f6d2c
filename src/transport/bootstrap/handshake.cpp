#include "transport/bootstrap/handshake.hpp"

#include <sodium.h>
#include <unistd.h>

#include <cstring>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Seconds that rank 0 has for one arrival.
constexpr double answer_seconds = 2;
constexpr std::uint64_t protocol = 0x53747265'74746f01;  // "Stretto", version 1

using SecretKey = std::array<unsigned char, crypto_auth_KEYBYTES>;
using Proof = std::array<unsigned char, crypto_auth_BYTES>;
using Nonce = std::array<unsigned char, 32>;

struct Challenge {
  std::uint64_t magic = protocol;
  Nonce nonce{};
};
struct Hello {
  std::uint64_t magic = protocol;
  RankIntroduction who;
  Nonce nonce{};
  Proof proof{};
};

SecretKey key_of(const std::string& secret) {
  if (sodium_init() < 0) fail(ErrorCode::unavailable, "libsodium finds no source of randomness on this machine.");
  SecretKey key;
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), nullptr,
                     0);
  return key;
}

// The arriving rank signs both challenges and its introduction.
Proof prove(const SecretKey& key, const Nonce& server, const Hello& hello) {
  std::array<unsigned char, sizeof(Nonce) * 2 + sizeof(RankIntroduction)> text{};
  std::memcpy(text.data(), server.data(), sizeof(Nonce));
  std::memcpy(text.data() + sizeof(Nonce), hello.nonce.data(), sizeof(Nonce));
  std::memcpy(text.data() + 2 * sizeof(Nonce), &hello.who, sizeof(RankIntroduction));
  Proof proof;
  crypto_auth(proof.data(), text.data(), text.size(), key.data());
  return proof;
}

Proof counter_proof(const SecretKey& key, const Proof& proof) {
  Proof result;
  crypto_auth(result.data(), proof.data(), proof.size(), key.data());
  return result;
}

}  // namespace

RankIntroduction introduce(int rank, int size) {
  RankIntroduction self;
  self.rank = rank;
  self.size = size;
  self.pid = getpid();
  gethostname(self.host.data(), self.host.size() - 1);
  return self;
}

Arrival receive_arrival(const Socket& socket, const std::string& secret) {
  const SecretKey key = key_of(secret);
  socket.give_up_after(answer_seconds);
  Challenge challenge;
  randombytes_buf(challenge.nonce.data(), challenge.nonce.size());
  Hello hello;
  Arrival arrival;
  if (!socket.write_all(&challenge, sizeof challenge) || !socket.read_all(&hello, sizeof hello, answer_seconds) ||
      hello.magic != protocol) {
    return arrival;
  }
  const Proof expected = prove(key, challenge.nonce, hello);
  if (sodium_memcmp(expected.data(), hello.proof.data(), expected.size()) != 0) return arrival;
  const Proof counter = counter_proof(key, hello.proof);
  arrival.genuine = socket.write_all(counter.data(), counter.size());
  arrival.who = hello.who;
  arrival.who.host.back() = '\0';
  socket.give_up_after(0);
  return arrival;
}

void answer_arrival(const Socket& socket, const std::string& refusal) {
  const auto length = static_cast<std::uint32_t>(refusal.size());
  socket.write_all(&length, sizeof length);
  socket.write_all(refusal.data(), refusal.size());
}

void arrive(const Socket& socket, const std::string& secret, const RankIntroduction& self, const std::string& address) {
  const SecretKey key = key_of(secret);
  Challenge challenge;
  if (!socket.read_all(&challenge, sizeof challenge) || challenge.magic != protocol) {
    fail(ErrorCode::unavailable, "What listens at {} is not rank 0 of a Stretto job; choose another MASTER_PORT.", address);
  }
  Hello hello;
  hello.who = self;
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  hello.proof = prove(key, challenge.nonce, hello);
  Proof counter;
  const Proof expected = counter_proof(key, hello.proof);
  if (!socket.write_all(&hello, sizeof hello) || !socket.read_all(counter.data(), counter.size()) ||
      sodium_memcmp(counter.data(), expected.data(), expected.size()) != 0) {
    fail(ErrorCode::unavailable, "Rank 0 at {} turned rank {} away: STRETTO_JOB_SECRET differs between them.", address,
         self.rank);
  }
  std::uint32_t length = 0;
  std::string refusal;
  if (socket.read_all(&length, sizeof length) && length < 4096) {
    refusal.resize(length);
    if (socket.read_all(refusal.data(), length)) {
      if (refusal.empty()) return;
      fail(ErrorCode::invalid_argument, "{}", refusal);
    }
  }
  fail(ErrorCode::unavailable, "Rank 0 at {} closed the connection while rank {} arrived.", address, self.rank);
}

}  // namespace stretto
