#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/socket.hpp"

// Two ranks prove to each other that they belong to one job: each answers the other's random challenge with a keyed hash
// (libsodium's crypto_auth, HMAC-SHA-512-256) under the job's secret, which itself never travels.
namespace stretto {

using Hash = std::array<unsigned char, 32>;
Hash hash_of(const std::string& text);  // libsodium's crypto_generichash; the hash of the secret is the key

// A rank's data about itself.
struct RankIntroduction {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int64_t pid = 0;
  std::array<char, 64> host{};
  // A hash of the job's name, as given by its launcher and its program, and the name itself for error messages; a long name
  // is shortened in the middle.
  Hash job_hash{};
  std::array<char, 128> job{};

  std::string to_string() const;  // "rank 3 (process 17 on node7)"
};
RankIntroduction introduce(int rank, int size, const std::string& job);

using Proof = std::array<unsigned char, 32>;
using Nonce = std::array<unsigned char, 32>;

struct Challenge {
  std::uint64_t protocol = 0;
  Nonce nonce{};
};
struct Hello {
  std::uint64_t protocol = 0;
  RankIntroduction who;
  Nonce nonce{};
  Proof proof{};
};

// Rank 0's half for one connection. It never waits: call look() whenever bytes have come.
class Arriving {
 public:
  Arriving(Socket socket, const Hash& key);

  enum class State { waits, came, other_secret, other_version, no_rank };
  State look();
  int descriptor() const { return socket_.descriptor(); }
  double since() const { return since_; }
  const RankIntroduction& who() const { return hello_.who; }  // valid after State::came
  std::string other_host() const { return socket_.other_host(); }
  // Lets the rank in, and tells it who rank 0 is and the job's identity.
  Socket admit(const RankIntroduction& self, std::uint64_t identity);
  void turn_away(const std::string& why);

 private:
  void answer(const RankIntroduction* self, std::uint64_t identity, const std::string& why);

  Socket socket_;
  const Hash& key_;
  double since_;
  Challenge challenge_;
  Hello hello_;
  std::size_t bytes_ = 0;  // of the hello
};

// How the sentences of errors name both sides.
struct ArrivalNames {
  std::string there = "rank 0", here = {};  // who listens, and who arrives; empty: "rank 3" as it introduces itself
  std::string advice = "choose another MASTER_PORT";  // where another program listens
  std::string none_there =
      "is it running, and is this its address? A job that has begun takes no further ranks from a launcher: start all of "
      "them again";  // where nobody listens
};

// The other ranks' half: connects to rank 0, again if it does not listen yet, until the meeting's time is over. Throws
// Error(unavailable) saying why there is no rank 0, or Error(invalid_argument) with rank 0's reason to turn this rank away.
struct Admission {
  Socket socket;
  RankIntroduction rank0;
  std::uint64_t identity = 0;  // of the job
};
Admission arrive(const Meeting& meeting, const RankIntroduction& self, const ArrivalNames& names = {});

}  // namespace stretto
