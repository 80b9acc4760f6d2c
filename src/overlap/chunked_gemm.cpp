#include "stretto/overlap/chunked_gemm.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "core/fail.hpp"
#include "device/gpu.hpp"
#include "device/kernels/compute_types.hpp"
#include "device/memory/range.hpp"
#include "device/stream/kernel_scope.hpp"
#include "overlap/row_shares.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

constexpr int most_chunks = 16;
// Every chunk's product reads and packs the whole weight again.
constexpr double weight_bytes_per_second = 10e9;

// The rate at which one core is assumed to multiply matrices. Nothing measured may stand here: the number of chunks
// determines the last bits of results. Where the real rate is three times higher, the number is wrong by a factor of
// sqrt(3).
double assumed_flops_per_second(DType dtype) {
  switch (dtype) {
    case DType::f64: return 50e9;
    case DType::f32:
    case DType::f16: return 100e9;  // multiplied in f32
    default: return 200e9;
  }
}

// The weight of a product, with the checks of the rows and results that fit it.
class GemmWeight {
 public:
  GemmWeight(const char* function, const GemmFactor& factor)
      : function_(function), factor_(factor), weight_(factor.weight), transpose_(factor.transpose) {
    require(kernels::is_compute_type(weight_.dtype()),
            "{} got a weight of {}; matrices of f64, f32, bf16 and f16 are multiplied.", function, name(weight_.dtype()));
    if (!factor.b && !factor.a) return;
    const Tensor &a = factor.a, &b = factor.b;
    require(a && b && b.columns() == a.rows() && b.rows() == weight_.rows() && a.columns() == weight_.columns() &&
                a.dtype() == weight_.dtype() && b.dtype() == weight_.dtype(),
            "{} got B of [{}] {} and A of [{}] {}, whose product is no addend of a weight of [{}] {}.", function,
            fmt::join(b.shape(), ", "), name(b.dtype()), fmt::join(a.shape(), ", "), name(a.dtype()),
            fmt::join(weight_.shape(), ", "), name(weight_.dtype()));
  }

  std::int64_t inner() const { return transpose_ == Transpose::yes ? weight_.columns() : weight_.rows(); }
  std::int64_t columns() const { return transpose_ == Transpose::yes ? weight_.rows() : weight_.columns(); }
  void multiply(const Tensor& x, const Tensor& y, std::int64_t first_row) const {
    if (y.size() > 0) factor_.multiply(x, y, first_row);
  }

  void require_rows(const char* what, const Tensor& x, std::int64_t rows) const {
    require(x.columns() == inner() && x.rows() == rows && x.dtype() == weight_.dtype(),
            "{} needs {} of [{}, {}] {} for a weight of [{}]{}, and got [{}] {}.", function_, what, rows, inner(),
            name(weight_.dtype()), fmt::join(weight_.shape(), ", "), transpose_ == Transpose::yes ? " transposed" : "",
            fmt::join(x.shape(), ", "), name(x.dtype()));
  }
  void require_result(const Tensor& y, std::int64_t rows) const {
    const DType dtype = weight_.dtype();
    require(y.columns() == columns() && y.rows() == rows && (y.dtype() == dtype || y.dtype() == kernels::accumulator(dtype)),
            "{} makes y of [{}, {}] {}, and got a y of [{}] {}.", function_, rows, columns(), name(dtype),
            fmt::join(y.shape(), ", "), name(y.dtype()));
  }

  double seconds(std::int64_t rows) const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(weight_.size()) / assumed_flops_per_second(weight_.dtype());
  }
  double overhead_seconds() const {  // of a chunk, without the cost of its message
    return hand_over_seconds + static_cast<double>(weight_.bytes()) / weight_bytes_per_second;
  }

 private:
  const char* function_;
  const GemmFactor& factor_;
  const Tensor& weight_;
  Transpose transpose_;
};

std::int64_t first_of_chunk(const Tensor& share, int chunks, int i) {
  return chunk_of(share.rows(), chunks, i, gemm_granule).first;
}

Tensor chunk(const Tensor& share, int chunks, int i) {
  const Rows rows = chunk_of(share.rows(), chunks, i, gemm_granule);
  return rows_of(share, rows.first, rows.count);
}

int most_chunks_of(std::int64_t rows) {
  return static_cast<int>(std::clamp<std::int64_t>((rows + gemm_granule - 1) / gemm_granule, 1, most_chunks));
}

void check_options(const char* function, const ChunkedGemmOptions& options) {
  require(options.chunks >= 0, "{} got {} chunks; give 1 or more, or 0 to leave it to the library.", function,
          options.chunks);
}

// The number of chunks of each share, when shares of `columns` columns travel while other ranks' rows are multiplied.
int chunks_of_shares(const RowShares& shares, std::int64_t columns, DType dtype, const GemmWeight& factor,
                     const Communicator& group, const ChunkedGemmOptions& options) {
  if (options.chunks > 0) return options.chunks;
  if (shares.ranks() == 1 || shares.all() == 0) return 1;
  Call call{Collective::all_gather, nullptr, nullptr, 0, dtype};
  for (int rank = 0; rank < shares.ranks(); ++rank) call.counts.push_back(shares.count(rank) * columns);
  const Estimate communication = group.estimate(call, {.method = Algorithm::ring});
  const int others = shares.ranks() - 1;
  const double compute = factor.seconds(shares.all()) * others / shares.ranks();
  return chunks_per_block(compute, communication.seconds, communication.overhead / others + factor.overhead_seconds(),
                          others, most_chunks_of(shares.most()));
}

// The sums of all chunks but the last, in flight on the stream, and the last chunk, computed but not summed.
struct PartialSum {
  Work earlier;
  Tensor last;
};
// Computes all chunks; the stream sums each one, but for the last, while the next is computed.
PartialSum sum_all_but_last(const char* function, const Tensor& x, const GemmFactor& by, const Tensor& y,
                            const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options) {
  const ProfilerRange range([&] { return function; });
  const GemmWeight factor(function, by);
  check_options(function, options);
  factor.require_rows("x", x, x.rows());
  factor.require_result(y, x.rows());
  int chunks = options.chunks;
  if (group.size() == 1) {
    chunks = 1;
  } else if (chunks == 0) {
    const Estimate sum = group.estimate({Collective::all_reduce, nullptr, nullptr, y.size(), y.dtype()});
    chunks = chunk_count(factor.seconds(x.rows()), sum.seconds, sum.overhead + factor.overhead_seconds(),
                         most_chunks_of(x.rows()));
  }
  PartialSum summing;
  for (int i = 0; i < chunks; ++i) {
    const Tensor part = chunk(y, chunks, i);
    if (part.size() == 0) continue;
    if (summing.last) summing.earlier = group.all_reduce(summing.last, ReduceOp::sum, stream, {.tag = options.tag});
    factor.multiply(chunk(x, chunks, i), part, first_of_chunk(x, chunks, i));
    summing.last = part;
  }
  return summing;
}

}  // namespace

void AdapterDropout::drop(const Part& part, const Tensor& x, std::int64_t first_row, const Tensor& out) const {
  if (!part.drops) {
    if (x.raw() != out.raw()) as_kernel("copy", [&] { out.copy_from(x); });
    return;
  }
  const kernels::Dropout options{.probability = probability, .number = part.number, .first_column = first_column};
  kernels::dropout(options, x, draws.view(first_row, {x.rows()}), out);
}

void GemmFactor::add_dropped(const Tensor& x, const Tensor& y, std::int64_t first_row) const {
  const std::int64_t rows = x.rows(), in = a.columns();
  const auto rows_of_a = [&](const AdapterDropout::Part& part) { return a.view(part.first * in, {part.rank, in}); };
  const Tensor between({rows, a.rows()}, x.dtype());
  if (transpose == Transpose::yes) {
    const Tensor dropped({rows, in}, x.dtype());
    for (const AdapterDropout::Part& part : dropout.parts) {
      dropout.drop(part, x, first_row, dropped);
      const Tensor narrow({rows, part.rank}, x.dtype());
      kernels::gemm(dropped, Transpose::no, rows_of_a(part), Transpose::yes, narrow);
      kernels::copy_columns(narrow, 0, between, part.first, part.rank);
    }
    kernels::gemm(between, Transpose::no, b, Transpose::yes, y, true);
    return;
  }
  kernels::gemm(x, Transpose::no, b, Transpose::no, between);
  const Tensor addend({rows, in}, y.dtype());
  for (const AdapterDropout::Part& part : dropout.parts) {
    const Tensor narrow({rows, part.rank}, x.dtype());
    kernels::copy_columns(between, part.first, narrow, 0, part.rank);
    kernels::gemm(narrow, Transpose::no, rows_of_a(part), Transpose::no, addend);
    dropout.drop(part, addend, first_row, addend);
    kernels::add(y, addend, y);
  }
}

void GemmFactor::multiply(const Tensor& x, const Tensor& y, std::int64_t first_row) const {
  kernels::gemm(x, Transpose::no, weight, transpose, y);
  add(x, y, first_row);
}

void GemmFactor::add(const Tensor& x, const Tensor& y, std::int64_t first_row) const {
  if (!a) return;
  const MemoryScope scratch(MemoryKind::other);
  if (dropout.any()) return add_dropped(x, y, first_row);
  const auto& [first, second] = transpose == Transpose::yes ? std::tie(a, b) : std::tie(b, a);
  const Tensor between({x.rows(), a.rows()}, x.dtype());
  kernels::gemm(x, Transpose::no, first, transpose, between);
  kernels::gemm(between, Transpose::no, second, transpose, y, true);
}

void all_gather_gemm(const Tensor& x, const std::vector<std::int64_t>& rows, const GemmFactor& by, const Tensor& y,
                     const Tensor& gathered, const Communicator& group, const Stream& stream,
                     const ChunkedGemmOptions& options) {
  const char* const function = "all_gather_gemm";
  const ProfilerRange range([&] { return function; });
  const GemmWeight factor(function, by);
  const RowShares shares(function, rows, group);
  const int me = group.rank();
  const int ranks = group.size();
  check_options(function, options);
  factor.require_rows("x", x, shares.count(me));
  factor.require_result(y, shares.all());
  if (gathered) factor.require_rows("gathered", gathered, shares.all());

  const Tensor own = x.reshaped({x.rows(), factor.inner()});
  const Tensor all = gathered ? gathered : Tensor::symmetric({ranks > 1 ? shares.all() : 0, factor.inner()}, x.dtype());
  const int chunks = chunks_of_shares(shares, factor.inner(), x.dtype(), factor, group, options);
  std::vector<Work> arrived;
  for (int step = 1; step < ranks; ++step) {
    const Tensor out = step == 1 ? own : shares.share(all, around(me - step + 1, ranks));
    const Tensor in = shares.share(all, around(me - step, ranks));
    for (int i = 0; i < chunks; ++i) {
      arrived.push_back(exchange(group, chunk(out, chunks, i), around(me + 1, ranks), chunk(in, chunks, i),
                                 around(me - 1, ranks), stream, options.tag));
    }
  }
  factor.multiply(own, shares.share(y, me), shares.first(me));
  if (gathered && shares.share(gathered, me).raw() != own.raw()) {
    as_kernel("copy", [&] { shares.share(gathered, me).copy_from(own); });
  }
  if (options.meanwhile) options.meanwhile();
  auto next = arrived.begin();
  for (int step = 1; step < ranks; ++step) {
    const int from = around(me - step, ranks);
    for (int i = 0; i < chunks; ++i) {
      computation().wait(*next++);
      const Tensor share = shares.share(all, from);
      factor.multiply(chunk(share, chunks, i), chunk(shares.share(y, from), chunks, i),
                      shares.first(from) + first_of_chunk(share, chunks, i));
    }
  }
}

void gemm_reduce_scatter(const Tensor& x, const std::vector<std::int64_t>& rows, const GemmFactor& by, const Tensor& y,
                         const Communicator& group, const Stream& stream, const ChunkedGemmOptions& options) {
  const char* const function = "gemm_reduce_scatter";
  const ProfilerRange range([&] { return function; });
  const GemmWeight factor(function, by);
  const RowShares shares(function, rows, group);
  const int me = group.rank();
  const int ranks = group.size();
  check_options(function, options);
  factor.require_rows("x", x, shares.all());
  factor.require_result(y, shares.count(me));
  if (ranks == 1) {
    factor.multiply(x, y, 0);
    if (options.meanwhile) options.meanwhile();
    return;
  }

  const Tensor own = y.reshaped({y.rows(), factor.columns()});
  const Tensor for_others = Tensor::symmetric({shares.all(), factor.columns()}, y.dtype());
  std::vector<Tensor> products(static_cast<std::size_t>(ranks), own);  // each rank's product for this rank's rows
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != me) products[static_cast<std::size_t>(rank)] = Tensor::symmetric(own.shape(), y.dtype());
  }
  const int chunks = chunks_of_shares(shares, factor.columns(), y.dtype(), factor, group, options);
  std::vector<Work> arrived;
  for (int step = 1; step < ranks; ++step) {
    const int to = around(me + step, ranks);
    const int from = around(me - step, ranks);
    for (int i = 0; i < chunks; ++i) {
      const Tensor out = chunk(shares.share(for_others, to), chunks, i), share = shares.share(x, to);
      factor.multiply(chunk(share, chunks, i), out, shares.first(to) + first_of_chunk(share, chunks, i));
      arrived.push_back(
          exchange(group, out, to, chunk(products[static_cast<std::size_t>(from)], chunks, i), from, stream, options.tag));
    }
  }
  factor.multiply(shares.share(x, me), own, shares.first(me));
  if (options.meanwhile) options.meanwhile();
  for (int i = 0; i < chunks; ++i) {
    const Tensor sum = chunk(own, chunks, i);
    // The stream runs in order: when the last step's chunk has arrived, those of the earlier steps have.
    computation().wait(arrived[arrived.size() - static_cast<std::size_t>(chunks - i)]);
    std::vector<const void*> sources;
    sources.reserve(products.size());
    for (const Tensor& product : products) sources.push_back(chunk(product, chunks, i).raw());
    as_kernel("reduce", [&] {
      if (on_gpu("reduce", own, for_others)) {
        gpu().kernels().reduce_all(ReduceOp::sum, y.dtype(), sources.data(), ranks, sum.raw(), sum.size(), 1, gpu_stream());
      } else {
        kernels::reduce_all(ReduceOp::sum, y.dtype(), sources.data(), ranks, sum.raw(), sum.size());
      }
    });
  }
}

void gemm_all_reduce(const Tensor& x, const GemmFactor& by, const Tensor& y, const Communicator& group, const Stream& stream,
                     const ChunkedGemmOptions& options) {
  if (options.meanwhile) return computation().wait(start_gemm_all_reduce(x, by, y, group, stream, options));
  const PartialSum summing = sum_all_but_last("gemm_all_reduce", x, by, y, group, stream, options);
  if (!summing.last || group.size() == 1) return;
  // On the host, operations of one communicator run in order anyway; a GPU's streams do not.
  computation().wait(summing.earlier);
  std::ignore = group.all_reduce(summing.last, ReduceOp::sum, computation(), {.tag = options.tag});
}

Work start_gemm_all_reduce(const Tensor& x, const GemmFactor& by, const Tensor& y, const Communicator& group,
                           const Stream& stream, const ChunkedGemmOptions& options) {
  const PartialSum summing = sum_all_but_last("start_gemm_all_reduce", x, by, y, group, stream, options);
  Work sum;
  if (summing.last && group.size() > 1) sum = group.all_reduce(summing.last, ReduceOp::sum, stream, {.tag = options.tag});
  if (options.meanwhile) options.meanwhile();
  return sum;
}

}  // namespace stretto
