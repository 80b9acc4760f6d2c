#include "overlap/offload/tensor_file.hpp"

#include <cstring>
#include <utility>

#include "device/rehearsal_mode.hpp"
#include "device/stream/abandoned_work.hpp"
#include "overlap/offload/aligned_memory.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_writing = 2;

}  // namespace

void TensorFile::make() {
  if (!file_) file_ = std::make_unique<ScratchFile>(directory_, 0);
}

std::int64_t TensorFile::place_for(std::int64_t bytes) {
  if (const auto found = free_.lower_bound(bytes); found != free_.end()) {
    const std::int64_t offset = found->second;
    free_.erase(found);
    return offset;
  }
  make();
  file_->grow(end_ + bytes);
  sizes_[end_] = bytes;
  return std::exchange(end_, end_ + bytes);
}

std::shared_ptr<KeptTensor> TensorFile::keep(const Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.bytes());
  const std::int64_t offset = place_for(ScratchFile::aligned(bytes));
  std::shared_ptr<KeptTensor> kept(new KeptTensor(shared_from_this(), offset, tensor));
  if (rehearsal_mode.skip_communication) return kept;
  if (writing_.size() == most_writing) {
    writing_.front().wait();
    writing_.pop_front();
  }
  written_ += ScratchFile::aligned(bytes);
  const Tensor memory = aligned_memory(bytes);
  std::memcpy(memory.raw(), tensor.raw(), tensor.bytes());
  kept->written_ =
      out_.enqueue([this, memory, offset] { file_->write(offset, memory.raw(), ScratchFile::aligned(memory.size())); });
  writing_.push_back(kept->written_);
  return kept;
}

OffloadUse TensorFile::use() const {
  return {.what = "blocks' inputs",
          .directory = directory_,
          .bytes = end_,
          .read = read_,
          .written = written_,
          .bypasses_cache = file_ && file_->is_direct(),
          .io_uring = file_ && file_->has_uring()};
}

KeptTensor::KeptTensor(std::shared_ptr<TensorFile> file, std::int64_t offset, const Tensor& tensor)
    : file_(std::move(file)), offset_(offset), shape_(tensor.shape()), dtype_(tensor.dtype()) {}

KeptTensor::~KeptTensor() {
  for (const Work& work : {written_, read_})
    wait_for_abandoned("A read or a write of a tensor's file", [&] { work.wait(); });
  file_->free_.emplace(file_->sizes_[offset_], offset_);
}

void KeptTensor::fetch() {
  if (memory_) return;
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape_) elements *= extent;
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(dtype_));
  memory_ = aligned_memory(bytes);
  if (rehearsal_mode.skip_communication) return;
  file_->read_ += ScratchFile::aligned(bytes);
  file_->in_.wait(written_);
  read_ = file_->in_.enqueue([file = file_->file_.get(), memory = memory_, offset = offset_] {
    file->read(offset, memory.raw(), ScratchFile::aligned(memory.size()));
  });
}

Tensor KeptTensor::take() {
  fetch();
  read_.wait();
  return memory_.view(std::size_t{0}, shape_, dtype_);
}

}  // namespace stretto
