#include "layers/optimizer/matrices/coefficient_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

struct Message {  // of one rank
  float* values;
  std::uint16_t* places;
};

Message message_of(const Tensor& gathered, const CoefficientVector& as, int rank) {
  std::byte* const begin = static_cast<std::byte*>(gathered.raw()) + rank * as.bytes();
  std::byte* const places = begin + as.coefficients * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(static_cast<void*>(begin)), static_cast<std::uint16_t*>(static_cast<void*>(places))};
}

// Copies the rows of the chunk that begins there in its matrix, one behind the other.
void take_rows(const ChunkGrid& grid, const float* begin, std::vector<float>& chunk) {
  for (std::int64_t row = 0; row < grid.height; ++row) {
    std::copy_n(begin + row * grid.columns, grid.width, chunk.begin() + row * grid.width);
  }
}

void put_rows(const ChunkGrid& grid, const std::vector<float>& chunk, float* begin) {
  for (std::int64_t row = 0; row < grid.height; ++row) {
    std::copy_n(chunk.begin() + row * grid.width, grid.width, begin + row * grid.columns);
  }
}

// Moves the largest coefficients of each chunk to the message, and leaves zeros in their places. The first of equal ones
// counts as the largest.
void take_largest(const CoefficientVector::Matrix& its, const Tensor& coefficients, const Message& message) {
  std::vector<float> chunk(static_cast<std::size_t>(its.grid.of_chunk())), magnitudes(chunk.size()), sorted;
  std::int64_t to = its.at;
  for (std::int64_t number = 0; number < its.grid.chunks(); ++number) {
    float* const begin = coefficients.data<float>() + its.grid.begin(number);
    take_rows(its.grid, begin, chunk);
    std::ranges::transform(chunk, magnitudes.begin(), [](float each) {
      return std::isnan(each) ? std::numeric_limits<float>::infinity() : std::abs(each);  // NaNs have no order
    });
    sorted = magnitudes;
    std::ranges::nth_element(sorted, sorted.begin() + its.kept - 1, std::greater<>());
    const float least = sorted[static_cast<std::size_t>(its.kept - 1)];
    std::int64_t equal = its.kept - std::ranges::count_if(magnitudes, [&](float each) { return each > least; });
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      if (magnitudes[i] < least || (magnitudes[i] == least && equal-- <= 0)) continue;
      message.values[to] = std::exchange(chunk[i], 0.0F);
      message.places[to++] = static_cast<std::uint16_t>(i);
    }
    put_rows(its.grid, chunk, begin);
  }
}

// Sets each coefficient to its mean over the messages that have it, summed in the order of ranks; to 0 where none has it.
void set_means(const CoefficientVector::Matrix& its, const std::vector<Message>& messages, const Tensor& coefficients) {
  std::vector<float> sums(static_cast<std::size_t>(its.grid.of_chunk()));
  std::vector<int> senders(sums.size());
  std::int64_t from = its.at;
  for (std::int64_t number = 0; number < its.grid.chunks(); ++number, from += its.kept) {
    std::ranges::fill(sums, 0.0F);
    std::ranges::fill(senders, 0);
    for (const Message& message : messages) {
      for (std::int64_t i = from; i < from + its.kept; ++i) {
        sums[message.places[i]] += message.values[i];
        ++senders[message.places[i]];
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (senders[i] > 1) sums[i] /= static_cast<float>(senders[i]);
    }
    put_rows(its.grid, sums, coefficients.data<float>() + its.grid.begin(number));
  }
}

void to_signs(const Tensor& tensor) {
  for (float& each : std::span(tensor.data<float>(), static_cast<std::size_t>(tensor.size()))) {
    each = static_cast<float>((each > 0) - (each < 0));
  }
}

}  // namespace

CoefficientVector coefficients_of(const std::vector<LocalGradients::Piece>& pieces, const Parameters& parameters,
                                  const CoefficientChoice& how) {
  CoefficientVector result;
  for (const LocalGradients::Piece& piece : pieces) {
    const Shape& extents = parameters.all()[piece.parameter]->extents;
    const std::int64_t columns = extents.empty() ? piece.count : std::max<std::int64_t>(1, extents.back());
    const ChunkGrid grid = ChunkGrid::of(piece.count / columns, columns, how.chunk);
    const std::int64_t kept = std::min(how.kept, grid.of_chunk());
    result.matrices.push_back({piece.parameter, piece.first, grid, kept, result.coefficients});
    result.coefficients += grid.chunks() * kept;
    result.largest = std::max(result.largest, piece.count);
  }
  return result;
}

CoefficientExchange::CoefficientExchange(ShardedParameters& parameters, const CoefficientChoice& how, double decay)
    : parameters_(parameters), decay_(decay), places_(parameters.parameters().all().size()) {
  for (const LocalGradients& vector : parameters.local_gradients()) {
    for (const LocalGradients::Piece& piece : vector.pieces) places_[piece.parameter] = {as_.size(), piece.first};
    as_.push_back(coefficients_of(vector.pieces, parameters.parameters(), how));
    parameters.errors().state(MomentumExchange::error_name(vector), Hop::contribution, vector.vector.size());
  }
}

void CoefficientExchange::run(double factor) {
  for (std::size_t i = 0; i < as_.size(); ++i) run(parameters_.local_gradients()[i], as_[i], factor);
}

// Afterwards the momentum is the decoded rest: the coefficients that were not sent. If all were sent, it is exactly 0.
void CoefficientExchange::run(const LocalGradients& vector, const CoefficientVector& as, double factor) {
  const Tensor momentum =
      parameters_.errors().state(MomentumExchange::error_name(vector), Hop::contribution, vector.vector.size());
  kernels::scale(momentum, decay_);
  kernels::scale(vector.vector, factor);
  kernels::add(momentum, vector.vector, momentum);

  const MemoryScope buffers(MemoryKind::buffers);
  const int ranks = vector.group.size(), rank = vector.group.rank();
  const Tensor gathered = Tensor::symmetric({ranks * as.bytes()}, DType::u8);
  const Tensor own = gathered.view(rank * as.bytes(), {as.bytes()});
  const Tensor all({as.largest}, DType::f32), scratch({as.largest}, DType::f32);
  if (as.bytes() > 0) std::memset(static_cast<std::byte*>(own.raw()) + as.bytes() - 4, 0, 4);  // its padding
  const auto part = [](const Tensor& of, const CoefficientVector::Matrix& its, std::int64_t first) {
    return of.view(first, {its.grid.rows, its.grid.columns});
  };
  for (const auto& its : as.matrices) {
    const Tensor coefficients = part(all, its, 0), of_matrix = part(momentum, its, its.first);
    dct_.encode(its.grid, of_matrix, coefficients, part(scratch, its, 0));
    take_largest(its, coefficients, message_of(gathered, as, rank));
    dct_.decode(its.grid, coefficients, of_matrix, part(scratch, its, 0));
  }
  if (ranks > 1) computation().wait(vector.group.all_gather(own, gathered, computation(), {.tag = "demo"}));
  std::vector<Message> messages;
  messages.reserve(static_cast<std::size_t>(ranks));
  for (int sender = 0; sender < ranks; ++sender) messages.push_back(message_of(gathered, as, sender));
  for (const auto& its : as.matrices) {
    const Tensor coefficients = part(all, its, 0);
    set_means(its, messages, coefficients);
    dct_.decode(its.grid, coefficients, part(vector.vector, its, its.first), part(scratch, its, 0));
  }
  to_signs(vector.vector);
}

Tensor CoefficientExchange::sign_of(const ShardedParameters::Range& range) const {
  const Place& place = places_[range.parameter];
  return parameters_.local_gradients()[place.vector].vector.view(place.first + range.first, {range.count});
}

}  // namespace stretto
