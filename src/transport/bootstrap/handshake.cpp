#include "transport/bootstrap/handshake.hpp"

#include <sodium.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/fail.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr std::uint64_t version = 5;
constexpr std::uint64_t protocol = 0x53747265'74746f00 | version;  // "Stretto", and the version
bool is_stretto(std::uint64_t said) { return said >> 8 == protocol >> 8; }

constexpr std::uint32_t longest_reason = 4096;
struct Answer {
  std::uint32_t admitted = 0;
  std::uint32_t reason_bytes = 0;
  std::uint64_t identity = 0;
  RankIntroduction rank0;
  Proof proof{};
};

// The arriving rank signs both challenges and its introduction.
Proof prove(const Hash& key, const Nonce& server, const Hello& hello) {
  std::array<unsigned char, sizeof(Nonce) * 2 + sizeof(RankIntroduction)> text{};
  std::memcpy(text.data(), server.data(), sizeof(Nonce));
  std::memcpy(text.data() + sizeof(Nonce), hello.nonce.data(), sizeof(Nonce));
  std::memcpy(text.data() + 2 * sizeof(Nonce), &hello.who, sizeof(RankIntroduction));
  Proof proof;
  crypto_auth(proof.data(), text.data(), text.size(), key.data());
  return proof;
}

// Rank 0 signs the arriving rank's proof, which depends on both challenges, and the job's identity.
Proof counter_proof(const Hash& key, const Proof& proof, std::uint64_t identity) {
  std::array<unsigned char, sizeof(Proof) + sizeof identity> text{};
  std::memcpy(text.data(), proof.data(), sizeof(Proof));
  std::memcpy(text.data() + sizeof(Proof), &identity, sizeof identity);
  Proof result;
  crypto_auth(result.data(), text.data(), text.size(), key.data());
  return result;
}

std::string shortened(const std::string& text, std::size_t most) {
  const std::size_t half = (most - 3) / 2;
  return text.size() <= most ? text : text.substr(0, half) + "..." + text.substr(text.size() - half);
}

// At the beginning of a sentence.
std::string capital(std::string name) {
  name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
  return name;
}

// One try to arrive. Empty: the other side has closed the connection.
std::optional<Admission> try_to_arrive(Socket socket, const Hash& key, const Meeting& meeting, const RankIntroduction& self,
                                       const ArrivalNames& names, double deadline) {
  const std::string address = fmt::format("{}:{}", meeting.host, meeting.port);
  const auto left = [&] { return deadline - now_seconds(); };
  Challenge challenge;
  if (!socket.read_all(&challenge, sizeof challenge, left())) {
    if (left() > 0) return std::nullopt;
    fail(ErrorCode::unavailable,
         "{} accepts a connection, but has said nothing to {} within {} s: it is not {} of a Stretto job, or {} is stopped; "
         "if it is another program, {}.",
         address, names.here, meeting.timeout, names.there, names.there, names.advice);
  }
  if (!is_stretto(challenge.protocol)) {
    fail(ErrorCode::unavailable, "{} is not {} of a Stretto job; {}.", address, names.there, names.advice);
  }
  if (challenge.protocol != protocol) {
    fail(ErrorCode::unavailable,
         "{} at {} speaks version {} of Stretto's protocol, and {} version {}; give both the same build of Stretto.",
         capital(names.there), address, challenge.protocol & 0xff, names.here, version);
  }
  Hello hello;
  hello.protocol = protocol;
  hello.who = self;
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  hello.proof = prove(key, challenge.nonce, hello);
  Answer answer;
  std::string reason;
  bool whole = socket.write_all(&hello, sizeof hello, left()) && socket.read_all(&answer, sizeof answer, left()) &&
               answer.reason_bytes <= longest_reason;
  if (whole) {
    reason.resize(answer.reason_bytes);
    whole = socket.read_all(reason.data(), reason.size(), left());
  }
  if (!whole && left() > 0) return std::nullopt;
  if (!whole) {
    fail(ErrorCode::unavailable, "{} at {} has not answered {} within {} s; it may be stopped.", capital(names.there),
         address, names.here, meeting.timeout);
  }
  if (answer.admitted == 0) {
    fail(ErrorCode::invalid_argument, "{} at {} turned {} away: {}", capital(names.there), address, names.here, reason);
  }
  const Proof expected = counter_proof(key, hello.proof, answer.identity);
  if (sodium_memcmp(answer.proof.data(), expected.data(), expected.size()) != 0) {
    fail(ErrorCode::unavailable, "{} let {} in without knowing the job's STRETTO_JOB_SECRET: it is not {}.", address,
         names.here, names.there);
  }
  answer.rank0.host.back() = '\0';
  return Admission{std::move(socket), answer.rank0, answer.identity};
}

}  // namespace

std::string RankIntroduction::to_string() const { return fmt::format("rank {} (process {} on {})", rank, pid, host.data()); }

RankIntroduction introduce(int rank, int size, const std::string& job) {
  RankIntroduction self;
  self.rank = rank;
  self.size = size;
  self.pid = getpid();
  gethostname(self.host.data(), self.host.size() - 1);
  self.job_hash = hash_of(job);
  shortened(job, self.job.size() - 1).copy(self.job.data(), self.job.size() - 1);
  return self;
}

Hash hash_of(const std::string& text) {
  static_assert(sizeof(Hash) == crypto_auth_KEYBYTES && sizeof(Hash) == crypto_generichash_BYTES &&
                sizeof(Proof) == crypto_auth_BYTES);
  if (sodium_init() < 0) fail(ErrorCode::unavailable, "libsodium finds no source of randomness on this machine.");
  Hash hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return hash;
}

Arriving::Arriving(Socket socket, const Hash& key) : socket_(std::move(socket)), key_(key), since_(now_seconds()) {
  challenge_.protocol = protocol;
  randombytes_buf(challenge_.nonce.data(), challenge_.nonce.size());
  socket_.write_some(&challenge_, sizeof challenge_);  // a new connection takes so few bytes at once
}

Arriving::State Arriving::look() {
  while (bytes_ < sizeof hello_) {
    const ssize_t got = socket_.read_some(reinterpret_cast<std::byte*>(&hello_) + bytes_, sizeof hello_ - bytes_);
    if (got < 0) return State::no_rank;
    if (got == 0) return State::waits;
    bytes_ += static_cast<std::size_t>(got);
    if (bytes_ < sizeof hello_.protocol) continue;
    if (!is_stretto(hello_.protocol)) return State::no_rank;
    if (hello_.protocol != protocol) return State::other_version;
  }
  hello_.who.host.back() = hello_.who.job.back() = '\0';
  const Proof expected = prove(key_, challenge_.nonce, hello_);
  return sodium_memcmp(expected.data(), hello_.proof.data(), expected.size()) == 0 ? State::came : State::other_secret;
}

Socket Arriving::admit(const RankIntroduction& self, std::uint64_t identity) {
  answer(&self, identity, "");
  return std::move(socket_);
}

void Arriving::turn_away(const std::string& why) {
  answer(nullptr, 0, why);
  socket_.end_writing();
}

void Arriving::answer(const RankIntroduction* self, std::uint64_t identity, const std::string& why) {
  Answer head;
  head.admitted = self != nullptr ? 1 : 0;
  head.reason_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(why.size(), longest_reason));
  head.identity = identity;
  if (self != nullptr) {
    head.rank0 = *self;
    head.proof = counter_proof(key_, hello_.proof, identity);
  }
  std::array<std::byte, sizeof head + longest_reason> all;
  std::memcpy(all.data(), &head, sizeof head);
  std::memcpy(all.data() + sizeof head, why.data(), head.reason_bytes);
  socket_.write_some(all.data(), sizeof head + head.reason_bytes);
}

Admission arrive(const Meeting& meeting, const RankIntroduction& self, const ArrivalNames& given) {
  ArrivalNames names = given;
  if (names.here.empty()) names.here = fmt::format("rank {}", self.rank);
  const Hash key = hash_of(meeting.secret);
  const double deadline = now_seconds() + meeting.timeout;
  bool was_there = false;
  int error = 0;
  do {
    Socket socket = try_to_connect(meeting.host, meeting.port, deadline - now_seconds());
    error = errno;
    if (socket) {
      const std::string elsewhere = socket.other_host();
      if (!elsewhere.empty()) require_trust(meeting, fmt::format("{} at {}", capital(names.there), elsewhere));
      std::optional<Admission> admission = try_to_arrive(std::move(socket), key, meeting, self, names, deadline);
      if (admission) return std::move(*admission);
      was_there = true;  // and has closed the connection: it had too many others, or has ended
    } else if (was_there && error == ECONNREFUSED) {
      fail(ErrorCode::unavailable, "{} at {}:{} has gone while {} arrived: it gave up or died; its own message says why.",
           capital(names.there), meeting.host, meeting.port, names.here);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (now_seconds() < deadline);
  if (was_there) {
    fail(
        ErrorCode::unavailable,
        "{}:{} has closed every connection of {} for {} s: {} is crowded by strangers, or another program has the port; {}.",
        meeting.host, meeting.port, names.here, meeting.timeout, names.there, names.advice);
  }
  fail(ErrorCode::unavailable, "{} does not answer at {}:{} within {} s: {}{}.", capital(names.there), meeting.host,
       meeting.port, meeting.timeout, errno_text(error),
       error != ECONNREFUSED || names.none_there.empty() ? "" : "; " + names.none_there);
}

void require_trust(const Meeting& meeting, const std::string& who) {
  require(
      !meeting.secret.empty() || meeting.insecure,
      "{} is on another host, and the job has no secret: anybody who reaches its port could join. Set STRETTO_JOB_SECRET to "
      "the same text for all ranks; or, on a network that you trust, STRETTO_INSECURE=1.",
      who);
}

}  // namespace stretto
