#pragma once
#include <deque>

#include "core/fail.hpp"
#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Copies a member's messages to itself on the stream. Returns the messages to and from others, without empty ones, which
// both ends leave out.
inline std::vector<GpuMessage> without_own(const std::vector<GpuMessage>& messages, int rank, int size, Gpu& gpu,
                                           GpuStream stream) {
  std::vector<GpuMessage> others;
  std::deque<GpuMessage> sent, wanted;
  for (const GpuMessage& message : messages) {
    require(message.peer >= 0 && message.peer < size, "A message names member {} of a communicator of {}.", message.peer,
            size);
    if (message.bytes == 0) continue;
    if (message.peer != rank) {
      others.push_back(message);
    } else {
      (message.sends ? sent : wanted).push_back(message);
    }
  }
  require(sent.size() == wanted.size(), "Member {} sends itself {} messages and receives {} of them in one exchange.", rank,
          sent.size(), wanted.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    require(sent[i].bytes == wanted[i].bytes, "Member {} sends itself {} bytes and receives {}.", rank, sent[i].bytes,
            wanted[i].bytes);
    if (wanted[i].data != sent[i].data) gpu.copy(wanted[i].data, sent[i].data, sent[i].bytes, stream);
  }
  return others;
}

}  // namespace stretto
