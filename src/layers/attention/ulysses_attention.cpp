#include <algorithm>

#include "core/fail.hpp"
#include "device/stream/abandoned_work.hpp"
#include "device/stream/kernel_scope.hpp"
#include "layers/attention/grouped_heads.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/layers/parameter.hpp"

namespace stretto {
namespace {

Tensor message_buffer(const stretto::Shape& shape, DType dtype) {
  const MemoryScope buffers(MemoryKind::buffers);
  return Tensor::symmetric(shape, dtype);
}

// Heads beside each other in a message, each of some groups.
struct Part {
  kernels::TokenHeads heads;  // all of them, in the rows of this rank
  std::int64_t each;          // of a group
};

// The all-to-alls between rows of all heads and all rows of some heads.
class HeadExchanges {
 public:
  HeadExchanges(const Communicator& group, const Stream& stream, const AttentionCore::Shape& shape)
      : group_(group), stream_(stream), shape_(shape) {}
  // attend: takes all rows of a piece's heads, as a message has them, and returns such rows of the result.
  template <class Attend>
  void in_pieces(int pieces, const std::vector<Part>& from, const std::vector<Part>& to,
                 const std::array<const char*, 2>& tags, Attend attend) const;
  // The parts in rows that hold those of so many groups only.
  std::vector<kernels::TokenHeads> in_message(const std::vector<Part>& parts, const Tensor& rows, std::int64_t groups) const;

 private:
  struct Exchange {
    Exchange() = default;
    Exchange(Exchange&&) = default;
    Exchange& operator=(Exchange&&) = default;
    ~Exchange();     // waits, so that the tensors outlast the work also if attention throws
    Tensor out, in;  // a message for each rank, and from each rank
    Work work;
  };
  // Some groups of each rank's heads.
  struct Groups {
    std::int64_t of_rank, first, count;
    std::int64_t place(int rank) const { return rank * of_rank + first; }
  };
  std::int64_t columns(const Part& part, std::int64_t groups) const { return groups * part.each * shape_.head_size; }
  void start(Exchange& exchange, const char* tag) const;
  Exchange to_heads(const std::vector<Part>& from, const Groups& groups, const char* tag) const;
  Tensor all_rows(const Exchange& exchange) const;
  Exchange to_rows(const Tensor& heads, const char* tag) const;
  void put(const Exchange& exchange, const Groups& groups, const std::vector<Part>& to) const;

  const Communicator& group_;
  const Stream& stream_;
  const AttentionCore::Shape& shape_;
};

// Copies blocks that lie as [outer, inner] to memory in which they lie as [inner, outer]. A message has a rank's rows of all
// sequences together, and attention needs all ranks' rows of a sequence together.
void copy_transposed(const Tensor& from, std::int64_t outer, std::int64_t inner, const Tensor& to) {
  const std::int64_t block = from.size() / (outer * inner);
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < outer; ++i) {
      for (std::int64_t j = 0; j < inner; ++j) {
        to.view((j * outer + i) * block, {block}).copy_from(from.view((i * inner + j) * block, {block}));
      }
    }
  });
}

HeadExchanges::Exchange::~Exchange() {
  wait_for_abandoned("An all-to-all of attention heads", [&] { computation().wait(work); });
}

void HeadExchanges::start(Exchange& exchange, const char* tag) const {
  stream_.wait(computation());
  exchange.work = group_.all_to_all(exchange.out, exchange.in, stream_, {.tag = tag});
}

std::vector<kernels::TokenHeads> HeadExchanges::in_message(const std::vector<Part>& parts, const Tensor& rows,
                                                           std::int64_t groups) const {
  std::vector<kernels::TokenHeads> result;
  std::int64_t column = 0;
  for (const Part& part : parts) {
    result.push_back(like(part.heads, rows, columns(part, groups), column));
    column += columns(part, groups);
  }
  return result;
}

// A message for each rank: this rank's rows, with some of that rank's heads of each part.
HeadExchanges::Exchange HeadExchanges::to_heads(const std::vector<Part>& from, const Groups& groups, const char* tag) const {
  const int ranks = group_.size();
  const Tensor& tensor = from.front().heads.tensor;
  std::int64_t width = 0;
  for (const Part& part : from) width += columns(part, groups.count);
  const Shape message{tensor.rows(), width};
  Exchange exchange;
  exchange.out = message_buffer({ranks, tensor.rows(), width}, tensor.dtype());
  exchange.in = Tensor::symmetric(exchange.out.shape(), tensor.dtype());  // an activation, as the inner core keeps it
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor rows = exchange.out.view(rank * tensor.rows() * width, message);
    const std::vector<kernels::TokenHeads> places = in_message(from, rows, groups.count);
    for (std::size_t i = 0; i < from.size(); ++i) {
      copy_heads(from_group(from[i].heads, groups.place(rank), from[i].each, shape_.head_size), places[i],
                 columns(from[i], groups.count));
    }
  }
  start(exchange, tag);
  return exchange;
}

Tensor HeadExchanges::all_rows(const Exchange& exchange) const {
  computation().wait(exchange.work);
  const Tensor& in = exchange.in;
  if (shape_.batch == 1) return in.reshaped({in.rows(), in.columns()});
  Tensor result({in.rows(), in.columns()}, in.dtype());
  copy_transposed(in, group_.size(), shape_.batch, result);
  return result;
}

HeadExchanges::Exchange HeadExchanges::to_rows(const Tensor& heads, const char* tag) const {
  const int ranks = group_.size();
  Exchange exchange;
  exchange.out = message_buffer({ranks, heads.rows() / ranks, heads.columns()}, heads.dtype());
  exchange.in = message_buffer(exchange.out.shape(), heads.dtype());
  copy_transposed(heads, shape_.batch, ranks, exchange.out);
  start(exchange, tag);
  return exchange;
}

void HeadExchanges::put(const Exchange& exchange, const Groups& groups, const std::vector<Part>& to) const {
  computation().wait(exchange.work);
  const int ranks = group_.size();
  const Shape message{exchange.in.rows() / ranks, exchange.in.columns()};
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor rows = exchange.in.view(rank * message[0] * message[1], message);
    const std::vector<kernels::TokenHeads> places = in_message(to, rows, groups.count);
    for (std::size_t i = 0; i < to.size(); ++i) {
      copy_heads(places[i], from_group(to[i].heads, groups.place(rank), to[i].each, shape_.head_size),
                 columns(to[i], groups.count));
    }
  }
}

// While a piece is attended to, the heads of the next piece and the rows of the last one are on their way.
template <class Attend>
void HeadExchanges::in_pieces(int pieces, const std::vector<Part>& from, const std::vector<Part>& to,
                              const std::array<const char*, 2>& tags, Attend attend) const {
  const std::int64_t of_rank = shape_.kv_heads / group_.size();
  const auto groups = [&](int piece) {
    const Share run = share_of(of_rank, pieces, piece);
    return Groups{of_rank, run.first, run.count};
  };
  Exchange coming = to_heads(from, groups(0), tags[0]), going;
  for (int i = 0; i < pieces; ++i) {
    Exchange next = i + 1 < pieces ? to_heads(from, groups(i + 1), tags[0]) : Exchange();
    const Tensor heads_here = all_rows(coming);
    coming = std::move(next);
    const Tensor attended = attend(i, heads_here, groups(i).count);
    if (i > 0) put(going, groups(i - 1), to);
    going = {};  // before there are buffers for the next one
    going = to_rows(attended, tags[1]);
  }
  put(going, groups(pieces - 1), to);
}

// Queries, keys and values as parts of a message, and back.
std::vector<Part> parts_of(const QueriesKeysValues& of, const AttentionCore::Shape& shape) {
  return {{of.q, heads_a_group(shape)}, {of.k, 1}, {of.v, 1}};
}
QueriesKeysValues joined(const std::vector<kernels::TokenHeads>& heads) { return {heads[0], heads[1], heads[2]}; }

}  // namespace

UlyssesAttention::UlyssesAttention(const Communicator& group, std::shared_ptr<const AttentionCore> inner,
                                   const Stream& stream, int pieces)
    : group_(group), inner_(std::move(inner)), stream_(stream), pieces_(pieces) {
  require(pieces >= 1, "Attention heads do not go in {} pieces; give 1 or more.", pieces);
}

Tensor UlyssesAttention::forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const {
  const int ranks = group_.size();
  require(shape.heads % ranks == 0, "{} attention heads do not divide over {} ulysses ranks.", shape.heads, ranks);
  require(shape.kv_heads % ranks == 0, "{} heads of keys and values do not divide over {} ulysses ranks.", shape.kv_heads,
          ranks);
  const auto count = static_cast<int>(std::clamp<std::int64_t>(shape.kv_heads / ranks, 1, pieces_));
  saved = {.shape = shape, .pieces = std::vector<Saved>(static_cast<std::size_t>(count))};
  Tensor attended({shape.batch * shape.rows, shape.heads * shape.head_size}, of.q.tensor.dtype());
  const HeadExchanges exchanges(group_, stream_, shape);
  const std::int64_t each = heads_a_group(shape);
  const std::vector<Part> parts = parts_of(of, shape);
  exchanges.in_pieces(count, parts, {{{attended}, each}}, {"queries, keys and values", "attended"},
                      [&](int i, const Tensor& rows, std::int64_t groups) {
                        const Shape inner{shape.batch, shape.rows * ranks, groups * each,
                                          groups,      shape.head_size,    shape.starts};
                        return inner_->forward(inner, joined(exchanges.in_message(parts, rows, groups)),
                                               saved.pieces[static_cast<std::size_t>(i)]);
                      });
  return attended;
}

void UlyssesAttention::backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const {
  const Shape& shape = saved.shape;
  const HeadExchanges exchanges(group_, stream_, shape);
  const std::vector<Part> parts = parts_of(gradients, shape);
  exchanges.in_pieces(
      static_cast<int>(saved.pieces.size()), {{{dattended}, heads_a_group(shape)}}, parts,
      {"gradients of attended", "gradients of queries, keys and values"},
      [&](int i, const Tensor& rows, std::int64_t groups) {
        Tensor result({rows.rows(), (shape.heads / shape.kv_heads + 2) * groups * shape.head_size}, rows.dtype());
        inner_->backward(rows, saved.pieces[static_cast<std::size_t>(i)],
                         joined(exchanges.in_message(parts, result, groups)));
        return result;
      });
}

}  // namespace stretto
