#pragma once
#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stand_in/host_gpu.hpp"
#include "transport/gpu/gpu_links.hpp"

// Ranks as threads that exchange messages over a stand-in GPU and any kind of GPU links, and the check of what they receive.
namespace stretto {

// Runs each rank in a thread. Returns each rank's error message, empty without an error.
inline std::vector<std::string> on_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::string> sentences(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        sentences[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return sentences;
}

class StreamInUse {
 public:
  explicit StreamInUse(HostGpu& gpu) : gpu_(gpu), stream_(gpu.create_stream(Priority::normal)) {}
  ~StreamInUse() { gpu_.destroy(stream_); }
  StreamInUse(const StreamInUse&) = delete;
  StreamInUse& operator=(const StreamInUse&) = delete;
  operator GpuStream() const { return stream_; }  // NOLINT(google-explicit-constructor): it is one

 private:
  HostGpu& gpu_;
  GpuStream stream_;
};

// Elements in the GPU's memory.
template <class T>
class OnGpu {
 public:
  OnGpu(HostGpu& gpu, GpuStream stream, const std::vector<T>& values)
      : gpu_(gpu), stream_(stream), size_(values.size()), memory_(gpu.allocate(std::max(bytes(), sizeof(T)), stream)) {
    if (size_ > 0) gpu_.copy(memory_, values.data(), bytes(), stream_);
  }
  OnGpu(HostGpu& gpu, GpuStream stream, std::size_t size, T value) : OnGpu(gpu, stream, std::vector<T>(size, value)) {}
  ~OnGpu() { gpu_.release(memory_, stream_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* at(std::size_t place = 0) const { return reinterpret_cast<T*>(memory_) + place; }
  std::byte* bytes_at(std::size_t place = 0) const { return memory_ + place * sizeof(T); }
  // Waits for the stream, even for no elements: the memory must outlive messages that links still carry.
  std::vector<T> values() const {
    std::vector<T> result(std::max<std::size_t>(size_, 1));
    gpu_.copy(result.data(), memory_, std::max(bytes(), sizeof(T)), stream_);
    result.resize(size_);
    return result;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }
  HostGpu& gpu_;
  GpuStream stream_;
  std::size_t size_;
  std::byte* memory_;
};

// One message of an exchange, known to all ranks.
struct Posted {
  int from = 0;
  int to = 0;
  std::size_t bytes = 0;
};

inline std::uint8_t value_of(const Posted& message, std::size_t number, std::size_t i) {
  return static_cast<std::uint8_t>(31 * message.from + 17 * message.to + 7 * number + i);
}

// Makes one rank's sends and receives of an exchange, shuffled but in order for each peer and direction. Returns the number
// of wrong bytes that it received.
inline std::size_t wrong_bytes(const std::vector<Posted>& posted, int rank, std::mt19937_64 chance, HostGpu& gpu,
                               GpuStream stream, GpuLinks& links) {
  std::vector<std::uint8_t> sent, expected;
  struct PlacedMessage {
    bool sends;
    std::size_t place, bytes;
    int peer;
  };
  std::vector<PlacedMessage> placed;
  for (std::size_t number = 0; number < posted.size(); ++number) {
    const Posted& message = posted[number];
    for (const bool sends : {true, false}) {
      if ((sends ? message.from : message.to) != rank) continue;
      std::vector<std::uint8_t>& data = sends ? sent : expected;
      placed.push_back({sends, data.size(), message.bytes, sends ? message.to : message.from});
      for (std::size_t i = 0; i < message.bytes; ++i) data.push_back(value_of(message, number, i));
    }
  }
  // A stable sort by random keys; all messages of one direction and peer share a key.
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 256; ++i) keys.push_back(chance());
  std::stable_sort(placed.begin(), placed.end(), [&](const PlacedMessage& a, const PlacedMessage& b) {
    return keys[static_cast<std::size_t>(2 * a.peer + a.sends)] < keys[static_cast<std::size_t>(2 * b.peer + b.sends)];
  });
  const OnGpu<std::uint8_t> input(gpu, stream, sent);
  const OnGpu<std::uint8_t> output(gpu, stream, expected.size(), std::uint8_t{0});
  std::vector<GpuMessage> messages;
  for (const PlacedMessage& each : placed) {
    const OnGpu<std::uint8_t>& memory = each.sends ? input : output;
    messages.push_back({each.sends, memory.bytes_at(each.place), each.bytes, each.peer});
  }
  links.exchange(messages, stream);
  gpu.zero(input.at(), sent.size(), stream);  // in stream order the exchange has ended, so the input may be overwritten
  const std::vector<std::uint8_t> got = output.values();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] != expected[i];
  return wrong;
}

inline std::vector<Posted> random_exchange(int size, std::mt19937_64& chance) {
  std::vector<Posted> posted;
  const auto below = [&](std::uint64_t end) { return static_cast<int>(chance() % end); };
  for (int messages = below(4 * static_cast<std::uint64_t>(size)); messages > 0; --messages) {
    const std::size_t bytes = below(4) == 0 ? 0 : static_cast<std::size_t>(below(3000));
    posted.push_back({below(static_cast<std::uint64_t>(size)), below(static_cast<std::uint64_t>(size)), bytes});
  }
  return posted;
}

inline std::vector<Posted> everybody_to_everybody(int size) {
  std::vector<Posted> posted;
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) posted.push_back({from, to, static_cast<std::size_t>(1 + 100 * from + 10 * to)});
  }
  return posted;
}

inline std::vector<Posted> ring(int size) {
  std::vector<Posted> posted;
  for (int from = 0; from < size; ++from) posted.push_back({from, (from + 1) % size, 777});
  return posted;
}

inline std::vector<std::vector<Posted>> exchanges_of(int size) {
  std::mt19937_64 chance(static_cast<std::uint64_t>(size));
  std::vector<std::vector<Posted>> exchanges{everybody_to_everybody(size), ring(size), {}};
  for (int i = 0; i < 10; ++i) exchanges.push_back(random_exchange(size, chance));
  return exchanges;
}

// Makes the exchanges on all ranks over the links that make(rank) returns. Returns the number of wrong bytes plus errors.
inline std::size_t wrong_in_all(const std::vector<std::vector<Posted>>& exchanges, int size, HostGpu& gpu,
                                const std::function<std::unique_ptr<GpuLinks>(int rank)>& make) {
  std::vector<std::size_t> wrong(static_cast<std::size_t>(size));
  const std::vector<std::string> sentences = on_ranks(size, [&](int rank) {
    const StreamInUse stream(gpu);
    const std::unique_ptr<GpuLinks> links = make(rank);
    std::mt19937_64 chance(static_cast<std::uint64_t>(rank));
    for (const std::vector<Posted>& posted : exchanges) {
      wrong[static_cast<std::size_t>(rank)] += wrong_bytes(posted, rank, chance, gpu, stream, *links);
    }
  });
  std::size_t sum = 0;
  for (const std::size_t one : wrong) sum += one;
  for (const std::string& sentence : sentences) {
    if (sentence.empty()) continue;
    ++sum;
    ADD_FAILURE() << sentence;
  }
  return sum;
}

// Three ranks exchange over two communicators in two streams.
inline void expect_turns_of(const std::function<std::unique_ptr<GpuLinks>(int rank)>& first,
                            const std::function<std::unique_ptr<GpuLinks>(int rank)>& second, HostGpu& gpu) {
  const std::vector<std::string> sentences = on_ranks(3, [&](int rank) {
    const StreamInUse a(gpu), b(gpu);
    const auto one = first(rank), other = second(rank);
    std::mt19937_64 chance;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(wrong_bytes(ring(3), rank, chance, gpu, a, *one), 0U);
      EXPECT_EQ(wrong_bytes(everybody_to_everybody(3), rank, chance, gpu, b, *other), 0U);
    }
  });
  EXPECT_EQ(sentences, std::vector<std::string>(3));
}

}  // namespace stretto
