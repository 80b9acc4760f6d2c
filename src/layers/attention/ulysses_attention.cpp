#include "core/fail.hpp"
#include "layers/attention/columns.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/attention.hpp"

namespace stretto {

UlyssesAttention::UlyssesAttention(const Communicator& group, std::shared_ptr<const AttentionCore> inner,
                                   const Stream& stream)
    : group_(group), inner_(std::move(inner)), stream_(stream) {}

// A message for each rank: this rank's rows, with that rank's heads of each part.
Tensor UlyssesAttention::to_heads(const Tensor& rows, std::int64_t batch, int parts, const char* tag) const {
  const int ranks = group_.size();
  const std::int64_t width = rows.columns() / parts / ranks;  // of some heads
  const std::int64_t block = rows.rows() * parts * width;
  const Tensor out = Tensor::symmetric({ranks, rows.rows(), parts * width}, rows.dtype());
  for (int rank = 0; rank < ranks; ++rank) {
    for (int part = 0; part < parts; ++part) {
      copy_columns(rows, (part * ranks + rank) * width, out.view(rank * block, {rows.rows(), parts * width}), part * width,
                   width);
    }
  }
  const Tensor in = Tensor::symmetric(out.shape(), out.dtype());
  exchange(out, in, tag);
  if (batch == 1) return in.reshaped({ranks * rows.rows(), parts * width});
  // Ranks' rows of each sequence belong behind each other.
  Tensor result({ranks * rows.rows(), parts * width}, rows.dtype());
  const std::int64_t run = rows.rows() / batch * parts * width;
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        result.view((i * ranks + rank) * run, {run}).copy_from(in.view(rank * block + i * run, {run}));
      }
    }
  });
  return result;
}

Tensor UlyssesAttention::to_rows(const Tensor& heads, std::int64_t batch, int parts, const char* tag) const {
  const int ranks = group_.size();
  const std::int64_t width = heads.columns() / parts;
  const std::int64_t rows = heads.rows() / ranks;  // of each rank
  const std::int64_t block = rows * parts * width;
  const std::int64_t run = block / batch;
  const Tensor out = Tensor::symmetric({ranks, rows, parts * width}, heads.dtype());
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        out.view(rank * block + i * run, {run}).copy_from(heads.view((i * ranks + rank) * run, {run}));
      }
    }
  });
  const Tensor in = Tensor::symmetric(out.shape(), out.dtype());
  exchange(out, in, tag);
  Tensor result({rows, parts * ranks * width}, heads.dtype());
  for (int rank = 0; rank < ranks; ++rank) {
    for (int part = 0; part < parts; ++part) {
      copy_columns(in.view(rank * block, {rows, parts * width}), part * width, result, (part * ranks + rank) * width, width);
    }
  }
  return result;
}

void UlyssesAttention::exchange(const Tensor& out, const Tensor& in, const char* tag) const {
  stream_.wait(computation());
  computation().wait(group_.start({.collective = Collective::all_to_all,
                                   .input = out.raw(),
                                   .output = in.raw(),
                                   .count = out.size() / group_.size(),
                                   .dtype = out.dtype(),
                                   .keep_alive = in},
                                  stream_, {.tag = tag}));
}

Tensor UlyssesAttention::forward(const Shape& shape, const Tensor& qkv, Saved& saved) const {
  const int ranks = group_.size();
  require(shape.heads % ranks == 0, "{} attention heads do not divide over {} ulysses ranks.", shape.heads, ranks);
  const Shape inner{shape.batch, shape.rows * ranks, shape.heads / ranks, shape.head_size};
  const Tensor attended = inner_->forward(inner, to_heads(qkv, shape.batch, 3, "queries, keys and values"), saved);
  return to_rows(attended, shape.batch, 1, "attended");
}

Tensor UlyssesAttention::backward(const Tensor& dattended, const Saved& saved) const {
  const std::int64_t batch = saved.shape.batch;
  const Tensor dqkv = inner_->backward(to_heads(dattended, batch, 1, "gradients of attended"), saved);
  return to_rows(dqkv, batch, 3, "gradients of queries, keys and values");
}

}  // namespace stretto
