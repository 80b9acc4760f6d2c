#include "transport/link.hpp"

#include "stretto/kernels.hpp"

namespace stretto {

void reduce_arrived(const Transfer& transfer, const std::byte* arrived, std::size_t offset, std::size_t bytes) {
  const auto count = static_cast<std::int64_t>(bytes / size_of(transfer.dtype));
  std::byte* const destination = transfer.destination + offset;
  kernels::reduce(transfer.op, transfer.dtype, arrived, transfer.operand + offset, destination, count);
  if (transfer.divisor != 1) kernels::divide(transfer.dtype, destination, count, transfer.divisor);
}

}  // namespace stretto
