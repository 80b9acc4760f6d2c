#pragma once
#include <cstring>
#include <vector>

#include "core/fail.hpp"
#include "transport/bootstrap/job.hpp"

// The bodies of frames.
namespace stretto {

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + values.size() * sizeof(T)};
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

inline Bytes packed(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) {
    const std::uint64_t length = part.size();
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    all.insert(all.end(), head, head + sizeof length);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Throws Error(internal) if there are not as many parts.
inline std::vector<Bytes> unpacked(const Bytes& all, int size) {
  std::vector<Bytes> parts(size);
  std::size_t at = 0;
  for (Bytes& part : parts) {
    std::uint64_t length = 0;
    ensure(at + sizeof length <= all.size(), "An exchange of {} parts came truncated.", size);
    std::memcpy(&length, all.data() + at, sizeof length);
    at += sizeof length;
    ensure(length <= all.size() - at, "An exchange of {} parts came truncated.", size);
    part.assign(all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
  }
  return parts;
}

}  // namespace stretto
