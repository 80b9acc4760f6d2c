#include <algorithm>
#include <utility>

#include "device/memory/memory.hpp"
#include "transport/ucx/ucx_worker.hpp"

namespace stretto {
namespace {

constexpr std::size_t segment_bytes = std::size_t{256} << 10;
constexpr std::size_t most_under_way = 4;

// Twice the bytes that the sockets of both directions may hold: the notice that a part was taken travels behind the data of
// its own direction.
constexpr std::size_t window_parts = 16;
constexpr std::size_t part_bytes = std::size_t{512} << 10;
// The window of background messages, for which nobody waits soon: sockets are queues in which nothing overtakes. This is the
// least that still keeps a link busy, since a part is granted only when all of it has been taken.
constexpr std::size_t background_window_parts = 2;
// Bytes that UCX needs in addition to those of a message that the receiver has not asked for.
constexpr std::size_t overhead = 256;

}  // namespace

bool UcxLink::progress(Transfer& transfer) {
  const bool moved = transfer.source != nullptr ? send_some(transfer) : receive_some(transfer);
  return worker_.progress() || moved;
}

bool UcxLink::send_some(Transfer& transfer) {
  bool moved = false;
  while (!transfer.held && transfer.started < transfer.bytes && sending_.size() < most_under_way) {
    const std::size_t bytes = std::min(segment_bytes, transfer.bytes - transfer.started);
    if (!may_send(transfer, bytes)) break;
    if (void* request = worker_.send(peer_, send_tag_, transfer.source + transfer.started, bytes)) {
      sending_.push_back({request, transfer.started, bytes, nullptr});
    }
    transfer.started += bytes;
    sent_ += bytes + overhead;
    moved = true;
  }
  // Finished segments are marked first and then erased: finished() may throw, and unfinished ones are still to be given up.
  for (UcxSegment& segment : sending_) {
    if (worker_.finished(peer_, segment.request)) segment.request = nullptr;
  }
  moved |= std::erase_if(sending_, [](const UcxSegment& segment) { return segment.request == nullptr; }) > 0;
  if (transfer.started == transfer.bytes && sending_.empty()) transfer.moved = transfer.bytes;
  return moved;
}

bool UcxLink::receive_some(Transfer& transfer) {
  bool moved = false;
  while (transfer.started < transfer.bytes && receiving_.size() < most_under_way) {
    UcxSegment segment;
    segment.offset = transfer.started;
    segment.bytes = std::min(segment_bytes, transfer.bytes - transfer.started);
    if (transfer.operand != nullptr) segment.staging = pool_allocate(segment.bytes);
    std::byte* const target = segment.staging ? segment.staging.get() : transfer.destination + segment.offset;
    segment.request = worker_.receive(peer_, receive_tag_, target, segment.bytes);
    transfer.started += segment.bytes;
    receiving_.push_back(std::move(segment));
    moved = true;
  }
  while (!receiving_.empty()) {
    UcxSegment& segment = receiving_.front();
    if (segment.request != nullptr && !worker_.received(peer_, segment.request, segment.bytes)) break;
    segment.request = nullptr;  // it is freed, and the following may throw
    if (segment.staging) reduce_arrived(transfer, segment.staging.get(), segment.offset, segment.bytes);
    const std::size_t bytes = segment.bytes;
    receiving_.erase(receiving_.begin());
    transfer.moved += bytes;
    take(bytes);
    moved = true;
  }
  return moved;
}

bool UcxLink::may_send(const Transfer& transfer, std::size_t bytes) {
  const std::size_t window = transfer.background ? background_window_parts : window_parts;
  while (sent_ + bytes + overhead > (window + parts_granted_) * part_bytes) {
    if (grant_ == nullptr) grant_ = worker_.receive(peer_, receive_tag_ | taken_flag, nullptr, 0);
    if (grant_ != nullptr && !worker_.finished(peer_, grant_)) return false;
    grant_ = nullptr;
    ++parts_granted_;
  }
  return true;
}

void UcxLink::take(std::size_t bytes) {
  taken_ += bytes + overhead;
  for (; taken_ / part_bytes > parts_told_; ++parts_told_) {
    worker_.notify(peer_, send_tag_ | taken_flag);
  }
}

void UcxLink::cancel(Transfer&) {
  std::vector<void*> requests{std::exchange(grant_, nullptr)};
  for (const UcxSegment& segment : sending_) requests.push_back(segment.request);
  for (const UcxSegment& segment : receiving_) requests.push_back(segment.request);
  std::erase(requests, nullptr);
  worker_.give_up(peer_, std::move(requests));
  sending_.clear();
  receiving_.clear();
}

}  // namespace stretto
