#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "core/files/scratch_file.hpp"
#include "stretto/overlap/offload_use.hpp"
#include "stretto/stream.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

class KeptTensor;

// Tensors that a rank has no use for until later, in a scratch file that grows with the most that are there at a time
// (ZeRO-Infinity; Rajbhandari et al. 2021). At most two are on their way out, in memory of their own: a third waits for the
// first. On the host. Only one thread may use an object and its tensors.
class TensorFile : public std::enable_shared_from_this<TensorFile> {
 public:
  explicit TensorFile(std::string directory) : directory_(std::move(directory)) {}

  // Makes the file, if it is not there; the first keep() would. Throws as ScratchFile does.
  void make();
  // Begins to write a copy of the tensor. Throws as ScratchFile does.
  std::shared_ptr<KeptTensor> keep(const Tensor& tensor);

  std::int64_t bytes() const { return end_; }  // of the file
  OffloadUse use() const;

 private:
  friend class KeptTensor;
  std::int64_t place_for(std::int64_t bytes);

  std::string directory_;
  std::unique_ptr<ScratchFile> file_;
  std::int64_t end_ = 0, read_ = 0, written_ = 0;
  std::map<std::int64_t, std::int64_t> sizes_;      // of places, by offset
  std::multimap<std::int64_t, std::int64_t> free_;  // offsets of free places, by size
  std::deque<Work> writing_;
  Stream in_{"activations in"}, out_{"activations out"};
};

// One tensor in the file. Its place is free again when this is destroyed.
class KeptTensor {
 public:
  ~KeptTensor();
  KeptTensor(const KeptTensor&) = delete;
  KeptTensor& operator=(const KeptTensor&) = delete;
  void fetch();   // begins to read it, unless that has begun
  Tensor take();  // blocks until it has been read

 private:
  friend class TensorFile;
  KeptTensor(std::shared_ptr<TensorFile> file, std::int64_t offset, const Tensor& tensor);

  std::shared_ptr<TensorFile> file_;
  std::int64_t offset_;
  Shape shape_;
  DType dtype_;
  Tensor memory_;
  Work written_, read_;
};

}  // namespace stretto
