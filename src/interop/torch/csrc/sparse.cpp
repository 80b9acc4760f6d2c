#include <algorithm>
#include <array>

#include "reduction.hpp"
#include "stretto/error.hpp"

namespace stretto_torch {
namespace {

// rows: one for each element of this rank, counts[rank] of them. Returns the rows of all ranks, in the order of the ranks.
at::Tensor rows_of_all(const stretto::Communicator& world, const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                       const stretto::Stream& stream) {
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[0] = 0;
  std::vector<std::int64_t> bytes;
  const std::int64_t row = c10::multiply_integers(rows.sizes().slice(1)) * static_cast<std::int64_t>(rows.element_size());
  for (const std::int64_t count : counts) {
    shape[0] += count;
    bytes.push_back(count * row);
  }
  at::Tensor all = at::empty(shape, rows.options());
  world.all_gather_v(rows.data_ptr(), all.data_ptr(), bytes, stretto::DType::u8, stream).wait();
  return all;
}

}  // namespace

void check_sparse(const char* what, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  TORCH_CHECK(tensor.layout() == at::kSparse && tensor.device().is_cpu(), "ProcessGroupStretto::", what,
              ": only supports sparse tensors of the layout ", at::kSparse, " on the CPU, and got one of ", tensor.layout(),
              " on ", tensor.device(), ".");
  TORCH_CHECK(op == c10d::ReduceOp::SUM, "ProcessGroupStretto::", what,
              ": sparse tensors have ReduceOp.SUM alone; give that, or convert the tensor by to_dense().");
}

void all_reduce_sparse(const stretto::Communicator& world, const at::Tensor& tensor, const stretto::Stream& stream) {
  const at::Tensor own = tensor.coalesce();
  // All but the number of elements must agree; Gloo checks that, too.
  using Facts = std::array<std::int64_t, 5>;  // the number of elements, then the values that must agree
  const Facts mine = {own._nnz(), own.sparse_dim(), own.dense_dim(), own.numel(),
                      static_cast<std::int64_t>(own.scalar_type())};
  std::vector<Facts> facts(static_cast<std::size_t>(world.size()));
  world.all_gather(mine.data(), facts.data(), static_cast<std::int64_t>(mine.size()), stretto::DType::i64, stream).wait();
  std::vector<std::int64_t> counts;
  for (const Facts& each : facts) {
    if (!std::equal(each.begin() + 1, each.end(), mine.begin() + 1)) {  // which every rank sees: the group stays usable
      throw stretto::Error(stretto::ErrorCode::invalid_argument,
                           c10::str("The sparse tensor of rank ", counts.size(),
                                    " has another type or shape than the one of "
                                    "rank ",
                                    world.rank(), ", ", own.scalar_type(), " ", own.sizes(), "; give all ranks the same."));
    }
    counts.push_back(each[0]);
  }
  const at::Tensor indices = rows_of_all(world, own._indices().t().contiguous(), counts, stream);
  const at::Tensor values = rows_of_all(world, own._values().contiguous(), counts, stream);
  const at::Tensor sum = at::sparse_coo_tensor(indices.t(), values, own.sizes(), own.options()).coalesce();
  tensor.copy_(sum);
}

}  // namespace stretto_torch
