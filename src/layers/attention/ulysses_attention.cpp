#include <algorithm>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/layers/parameter.hpp"

namespace stretto {
namespace {

Tensor message_buffer(const stretto::Shape& shape, DType dtype) {
  const MemoryScope buffers(MemoryKind::buffers);
  return Tensor::symmetric(shape, dtype);
}

// The all-to-alls between rows of all heads and all rows of some heads.
class HeadExchanges {
 public:
  HeadExchanges(const Communicator& group, const Stream& stream) : group_(group), stream_(stream) {}
  template <class Attend>
  Tensor in_pieces(int pieces, const AttentionCore::Shape& shape, const Tensor& rows, int parts, int result_parts,
                   const std::array<const char*, 2>& tags, Attend attend) const;

 private:
  struct Exchange {
    Exchange() = default;
    Exchange(Exchange&&) = default;
    Exchange& operator=(Exchange&&) = default;
    ~Exchange();     // waits, so that the tensors outlast the work also if attention throws
    Tensor out, in;  // a message for each rank, and from each rank
    Work work;
  };
  // Some columns of each rank's heads, in rows where `parts` tensors of all heads lie beside each other.
  struct Columns {
    int parts;
    std::int64_t width;  // of the heads of one rank
    std::int64_t first, count;
    std::int64_t place(int part, int rank, int ranks) const { return (part * ranks + rank) * width + first; }
  };
  void start(Exchange& exchange, const char* tag) const;
  Exchange to_heads(const Tensor& rows, const Columns& of, const char* tag) const;
  Tensor all_rows(const Exchange& exchange, std::int64_t batch) const;
  Exchange to_rows(const Tensor& heads, std::int64_t batch, const char* tag) const;
  void put(const Exchange& exchange, const Columns& of, const Tensor& rows) const;

  const Communicator& group_;
  const Stream& stream_;
};

HeadExchanges::Exchange::~Exchange() {
  try {
    computation().wait(work);
  } catch (const std::exception& error) {
    log().debug("An all-to-all of attention heads that nobody waited for has failed: {}", error.what());
  }
}

void HeadExchanges::start(Exchange& exchange, const char* tag) const {
  stream_.wait(computation());
  exchange.work = group_.all_to_all(exchange.out, exchange.in, stream_, {.tag = tag});
}

// A message for each rank: this rank's rows, with some of that rank's heads of each part.
HeadExchanges::Exchange HeadExchanges::to_heads(const Tensor& rows, const Columns& of, const char* tag) const {
  const int ranks = group_.size();
  const std::int64_t block = rows.rows() * of.parts * of.count;
  Exchange exchange;
  exchange.out = message_buffer({ranks, rows.rows(), of.parts * of.count}, rows.dtype());
  exchange.in = Tensor::symmetric(exchange.out.shape(), rows.dtype());  // an activation, as the inner core keeps it
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor message = exchange.out.view(rank * block, {rows.rows(), of.parts * of.count});
    for (int part = 0; part < of.parts; ++part) {
      kernels::copy_columns(rows, of.place(part, rank, ranks), message, part * of.count, of.count);
    }
  }
  start(exchange, tag);
  return exchange;
}

Tensor HeadExchanges::all_rows(const Exchange& exchange, std::int64_t batch) const {
  computation().wait(exchange.work);
  const int ranks = group_.size();
  const Tensor& in = exchange.in;
  const std::int64_t rows = in.rows() / ranks, columns = in.columns();
  if (batch == 1) return in.reshaped({ranks * rows, columns});
  // Ranks' rows of each sequence belong behind each other.
  Tensor result({ranks * rows, columns}, in.dtype());
  const std::int64_t run = rows / batch * columns;
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        result.view((i * ranks + rank) * run, {run}).copy_from(in.view(rank * rows * columns + i * run, {run}));
      }
    }
  });
  return result;
}

HeadExchanges::Exchange HeadExchanges::to_rows(const Tensor& heads, std::int64_t batch, const char* tag) const {
  const int ranks = group_.size();
  const std::int64_t rows = heads.rows() / ranks, columns = heads.columns();
  const std::int64_t run = rows / batch * columns;
  Exchange exchange;
  exchange.out = message_buffer({ranks, rows, columns}, heads.dtype());
  exchange.in = message_buffer(exchange.out.shape(), heads.dtype());
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < batch; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        exchange.out.view(rank * rows * columns + i * run, {run}).copy_from(heads.view((i * ranks + rank) * run, {run}));
      }
    }
  });
  start(exchange, tag);
  return exchange;
}

void HeadExchanges::put(const Exchange& exchange, const Columns& of, const Tensor& rows) const {
  computation().wait(exchange.work);
  const int ranks = group_.size();
  const std::int64_t block = rows.rows() * of.parts * of.count;
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor message = exchange.in.view(rank * block, {rows.rows(), of.parts * of.count});
    for (int part = 0; part < of.parts; ++part) {
      kernels::copy_columns(message, part * of.count, rows, of.place(part, rank, ranks), of.count);
    }
  }
}

// While a piece is attended to, the heads of the next piece and the rows of the last one are on their way.
template <class Attend>
Tensor HeadExchanges::in_pieces(int pieces, const AttentionCore::Shape& shape, const Tensor& rows, int parts,
                                int result_parts, const std::array<const char*, 2>& tags, Attend attend) const {
  const std::int64_t heads = shape.heads / group_.size();
  const auto columns = [&](int piece, int of_parts) {
    const Share run = share_of(heads, pieces, piece);
    return Columns{of_parts, heads * shape.head_size, run.first * shape.head_size, run.count * shape.head_size};
  };
  Tensor result({rows.rows(), result_parts * shape.heads * shape.head_size}, rows.dtype());
  Exchange coming = to_heads(rows, columns(0, parts), tags[0]), going;
  for (int i = 0; i < pieces; ++i) {
    Exchange next = i + 1 < pieces ? to_heads(rows, columns(i + 1, parts), tags[0]) : Exchange();
    const Tensor heads_here = all_rows(coming, shape.batch);
    coming = std::move(next);
    const Tensor attended = attend(i, heads_here);
    if (i > 0) put(going, columns(i - 1, result_parts), result);
    going = {};  // before there are buffers for the next one
    going = to_rows(attended, shape.batch, tags[1]);
  }
  put(going, columns(pieces - 1, result_parts), result);
  return result;
}

}  // namespace

UlyssesAttention::UlyssesAttention(const Communicator& group, std::shared_ptr<const AttentionCore> inner,
                                   const Stream& stream, int pieces)
    : group_(group), inner_(std::move(inner)), stream_(stream), pieces_(pieces) {
  require(pieces >= 1, "Attention heads do not go in {} pieces; give 1 or more.", pieces);
}

Tensor UlyssesAttention::forward(const Shape& shape, const Tensor& qkv, Saved& saved) const {
  const int ranks = group_.size();
  require(shape.heads % ranks == 0, "{} attention heads do not divide over {} ulysses ranks.", shape.heads, ranks);
  const auto count = static_cast<int>(std::clamp<std::int64_t>(shape.heads / ranks, 1, pieces_));
  saved = {.shape = shape, .pieces = std::vector<Saved>(static_cast<std::size_t>(count))};
  return HeadExchanges(group_, stream_)
      .in_pieces(count, shape, qkv, 3, 1, {"queries, keys and values", "attended"}, [&](int i, const Tensor& heads) {
        const Shape inner{shape.batch, shape.rows * ranks, heads.columns() / shape.head_size / 3, shape.head_size};
        return inner_->forward(inner, heads, saved.pieces[static_cast<std::size_t>(i)]);
      });
}

Tensor UlyssesAttention::backward(const Tensor& dattended, const Saved& saved) const {
  return HeadExchanges(group_, stream_)
      .in_pieces(static_cast<int>(saved.pieces.size()), saved.shape, dattended, 1, 3,
                 {"gradients of attended", "gradients of queries, keys and values"}, [&](int i, const Tensor& heads) {
                   return inner_->backward(heads, saved.pieces[static_cast<std::size_t>(i)]);
                 });
}

}  // namespace stretto
