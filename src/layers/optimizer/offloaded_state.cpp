#include "layers/optimizer/offloaded_state.hpp"

#include <algorithm>
#include <numeric>

#include "core/fail.hpp"
#include "core/log.hpp"

namespace stretto {
namespace {

std::int64_t aligned_sum(const std::vector<std::int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0},
                         [](std::int64_t sum, std::int64_t each) { return sum + ScratchFile::aligned(each); });
}

std::int64_t largest(const std::vector<std::int64_t>& bytes) {
  return bytes.empty() ? 0 : ScratchFile::aligned(*std::max_element(bytes.begin(), bytes.end()));
}

Tensor aligned_memory(std::int64_t bytes) {
  const MemoryScope scope(MemoryKind::buffers);
  const Tensor all({bytes + ScratchFile::alignment}, DType::u8, Device::cpu);
  const auto address = reinterpret_cast<std::uintptr_t>(all.raw());
  const auto past = static_cast<std::int64_t>(address % ScratchFile::alignment);
  return all.view(past == 0 ? 0 : ScratchFile::alignment - past, {bytes});
}

}  // namespace

OffloadedState::OffloadedState(const std::string& directory, std::vector<std::int64_t> bytes)
    : bytes_(std::move(bytes)), file_bytes_(aligned_sum(bytes_)), file_(directory, file_bytes_) {
  std::int64_t offset = 0;
  for (const std::int64_t each : bytes_) {
    offsets_.push_back(offset);
    offset += ScratchFile::aligned(each);
  }
  for (Buffer& buffer : buffers_) buffer.memory = aligned_memory(largest(bytes_));
}

OffloadedState::~OffloadedState() {
  for (const Buffer& buffer : buffers_) {
    for (const Work& work : {buffer.read, buffer.written}) {
      try {
        work.wait();
      } catch (const std::exception& error) {
        log().debug("Optimizer state that nobody waited for was not moved: {}", error.what());
      }
    }
  }
}

std::int64_t OffloadedState::buffer_bytes(const std::vector<std::int64_t>& bytes) {
  return largest(bytes) > 0 ? buffers * (largest(bytes) + ScratchFile::alignment) : 0;
}

void OffloadedState::begin(std::vector<std::size_t> order) {
  const bool touched = touched_;
  touch();
  touched_ = false;
  if (touched) file_.forget();
  order_ = std::move(order);
  std::erase_if(order_, [&](std::size_t unit) { return bytes_[unit] == 0; });
  taken_ = reading_ = 0;
  for (int ahead = 0; ahead + 1 < buffers; ++ahead) read_next();
}

void OffloadedState::read_next() {
  if (reading_ == order_.size()) return;
  const std::size_t unit = order_[reading_];
  Buffer& buffer = buffers_[reading_++ % buffers];
  const std::int64_t bytes = ScratchFile::aligned(bytes_[unit]);
  in_.wait(buffer.written);
  buffer.read =
      in_.enqueue([this, to = buffer.memory, offset = offsets_[unit], bytes] { file_.read(offset, to.raw(), bytes); });
  traffic_.read += bytes;
}

Tensor OffloadedState::take(std::size_t unit) {
  if (bytes_[unit] == 0) return {};
  require(taken_ < order_.size() && order_[taken_] == unit,
          "The state of unit {} is taken as number {} of an update, whose order has another one there.", unit, taken_);
  const Buffer& buffer = buffers_[taken_ % buffers];
  buffer.read.wait();
  return buffer.memory.view(0, {bytes_[unit]});
}

void OffloadedState::give_back(std::size_t unit) {
  if (bytes_[unit] == 0) return;
  Buffer& buffer = buffers_[taken_++ % buffers];
  const std::int64_t bytes = ScratchFile::aligned(bytes_[unit]);
  buffer.written =
      out_.enqueue([this, from = buffer.memory, offset = offsets_[unit], bytes] { file_.write(offset, from.raw(), bytes); });
  traffic_.written += bytes;
  read_next();
}

Tensor OffloadedState::mapped(std::size_t unit) {
  if (bytes_[unit] == 0) return {};
  return Tensor::wrap(file_.mapped() + offsets_[unit], {bytes_[unit]}, DType::u8);
}

void OffloadedState::touch() {
  for (Buffer& buffer : buffers_) {
    buffer.written.wait();
    buffer.written = {};
  }
  touched_ = true;
}

}  // namespace stretto
