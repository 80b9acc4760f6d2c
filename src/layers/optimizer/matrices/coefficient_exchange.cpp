#include "layers/optimizer/matrices/coefficient_exchange.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "device/memory/memory.hpp"
#include "device/stream/kernel_scope.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

using kernels::cpu::ProductUse;

struct Message {  // of one rank
  float* values;
  std::uint16_t* places;
};

Message message_of(const Tensor& gathered, const CoefficientVector& as, int rank) {
  std::byte* const begin = static_cast<std::byte*>(gathered.raw()) + rank * as.bytes();
  std::byte* const places = begin + as.coefficients * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(static_cast<void*>(begin)), static_cast<std::uint16_t*>(static_cast<void*>(places))};
}

// The bits of a magnitude, as a number: they have the order of the magnitudes, and NaNs are above infinity.
std::int32_t magnitude(float value) { return std::bit_cast<std::int32_t>(value) & std::numeric_limits<std::int32_t>::max(); }

using Magnitudes = std::vector<std::int32_t>;

std::int32_t largest_but(std::int64_t others, Magnitudes& of) {
  std::ranges::nth_element(of, of.begin() + others, std::greater<>());
  return of[static_cast<std::size_t>(others)];
}

// The buffers in which one thread works on a chunk; memory_use() counts them.
struct ChunkMemory {
  explicit ChunkMemory(const ChunkGrid& grid)
      : counted(static_cast<std::size_t>(bytes(grid)), Device::cpu),
        scratch(grid),
        coefficients(static_cast<std::size_t>(grid.of_chunk())),
        senders(coefficients.size()) {
    sent.reserve(coefficients.size());
    magnitudes.reserve(coefficients.size());
    counted.add();
  }
  ~ChunkMemory() { counted.remove(); }
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  static std::int64_t bytes(const ChunkGrid& grid) {
    constexpr std::size_t of_coefficient = sizeof(float) + sizeof(int) + sizeof(std::uint16_t) + sizeof(std::int32_t);
    return ChunkTransform::Scratch::elements(grid) * static_cast<std::int64_t>(sizeof(float)) +
           grid.of_chunk() * static_cast<std::int64_t>(of_coefficient);
  }

  CountedBytes counted;
  ChunkTransform::Scratch scratch;
  std::vector<float> coefficients;
  std::vector<int> senders;         // of each coefficient; zeros between two chunks
  std::vector<std::uint16_t> sent;  // places, in order
  Magnitudes magnitudes;
};

// Finds the places of the largest coefficients. The first of equal ones counts as the largest.
void find_largest(std::int64_t kept, ChunkMemory& memory) {
  const std::span<const float> chunk = memory.coefficients;
  Magnitudes& magnitudes = memory.magnitudes;
  // At least `kept` coefficients are not below the kept-th largest maximum of any groups, and few others are.
  const std::size_t groups = std::min(chunk.size(), 4 * static_cast<std::size_t>(kept));
  magnitudes.assign(groups, 0);
  for (std::size_t begin = 0; begin < chunk.size(); begin += groups) {
    const std::size_t count = std::min(groups, chunk.size() - begin);
    for (std::size_t i = 0; i < count; ++i) magnitudes[i] = std::max(magnitudes[i], magnitude(chunk[begin + i]));
  }
  const std::int32_t bound = largest_but(kept - 1, magnitudes);
  memory.sent.clear();
  magnitudes.clear();
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    if (magnitude(chunk[i]) < bound) continue;
    memory.sent.push_back(static_cast<std::uint16_t>(i));
    magnitudes.push_back(magnitude(chunk[i]));
  }
  const std::int32_t least = largest_but(kept - 1, magnitudes);
  std::int64_t equal = kept - std::ranges::count_if(magnitudes, [&](std::int32_t each) { return each > least; });
  std::erase_if(memory.sent, [&](std::uint16_t place) {
    const std::int32_t each = magnitude(chunk[place]);
    return each < least || (each == least && equal-- <= 0);
  });
}

// Moves the largest coefficients of a chunk of momentum to the message, from `to` on. If all are sent, the momentum becomes
// exactly 0.
void send_chunk(const CoefficientVector::Matrix& its, const ChunkTransform& transform, float* begin, const Message& message,
                std::int64_t to, ChunkMemory& memory) {
  float* const coefficients = memory.coefficients.data();
  transform.encode(begin, coefficients, memory.scratch);
  find_largest(its.kept, memory);
  float* const values = message.values + to;
  for (std::size_t i = 0; i < memory.sent.size(); ++i) values[i] = coefficients[memory.sent[i]];
  std::ranges::copy(memory.sent, message.places + to);
  if (its.kept == its.grid.of_chunk()) {
    for (std::int64_t row = 0; row < its.grid.height; ++row)
      std::fill_n(begin + row * its.grid.columns, its.grid.width, 0.0F);
    return;
  }
  std::ranges::fill(memory.coefficients, 0.0F);
  for (std::size_t i = 0; i < memory.sent.size(); ++i) coefficients[memory.sent[i]] = values[i];
  transform.decode(coefficients, begin, ProductUse::subtract, memory.scratch);
}

// Decodes the signs of a chunk. Each coefficient is its mean over the messages that have it, summed in the order of ranks; 0
// where none has it. The chunk's coefficients begin at `from` in each message.
void set_signs(const CoefficientVector::Matrix& its, const ChunkTransform& transform, const std::vector<Message>& messages,
               std::int64_t from, float* begin, ChunkMemory& memory) {
  float* const means = memory.coefficients.data();
  std::ranges::fill(memory.coefficients, 0.0F);
  const auto visit = [&](const auto& action) {
    for (const Message& message : messages) {
      for (std::int64_t i = from; i < from + its.kept; ++i) action(message.places[i], message.values[i]);
    }
  };
  visit([&](std::uint16_t place, float value) {
    means[place] += value;
    ++memory.senders[place];
  });
  visit([&](std::uint16_t place, float /*value*/) {
    if (const int senders = std::exchange(memory.senders[place], 0); senders > 1)
      means[place] /= static_cast<float>(senders);
  });
  transform.decode(means, begin, ProductUse::sign, memory.scratch);
}

// Only so many threads, the first ones, get a chunk; a smaller team would make OpenMP end threads and start them again.
std::int64_t working(int threads, const ChunkGrid& grid) { return std::min<std::int64_t>(threads, grid.chunks()); }

// Calls visit(begin of a chunk in the vector, number of its first coefficient in a message, memory) for each chunk of a
// matrix.
template <class Visit>
void for_each_chunk(int threads, const CoefficientVector::Matrix& its, const Visit& visit) {
  std::deque<ChunkMemory> memories;  // which does not move them
  for (std::int64_t i = 0; i < working(threads, its.grid); ++i) memories.emplace_back(its.grid);
  kernels::cpu::in_threads(threads, its.grid.chunks(), [&](int thread, std::int64_t first, std::int64_t end) {
    for (std::int64_t chunk = first; chunk < end; ++chunk) {
      visit(its.first + its.grid.begin(chunk), its.at + chunk * its.kept, memories[static_cast<std::size_t>(thread)]);
    }
  });
}

}  // namespace

std::int64_t CoefficientVector::scratch_bytes(int threads) const {
  std::int64_t most = 0;
  for (const Matrix& its : matrices) most = std::max(most, working(threads, its.grid) * ChunkMemory::bytes(its.grid));
  return most;
}

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
  }
  return result;
}

CoefficientExchange::CoefficientExchange(ShardedParameters& parameters, const CoefficientChoice& how, double decay,
                                         int threads)
    : parameters_(parameters), decay_(decay), threads_(threads), places_(parameters.parameters().all().size()) {
  for (const LocalGradients& vector : parameters.local_gradients()) {
    for (const LocalGradients::Piece& piece : vector.pieces) places_[piece.parameter] = {as_.size(), piece.first};
    as_.push_back(coefficients_of(vector.pieces, parameters.parameters(), how));
    parameters.errors().state(unsent_momentum(vector), Hop::contribution, vector.vector.size());
  }
}

void CoefficientExchange::run(double factor) {
  for (std::size_t i = 0; i < as_.size(); ++i) run(parameters_.local_gradients()[i], as_[i], factor);
}

void CoefficientExchange::run(const LocalGradients& vector, const CoefficientVector& as, double factor) {
  const Tensor momentum = parameters_.errors().state(unsent_momentum(vector), Hop::contribution, vector.vector.size());
  kernels::scale(momentum, decay_);
  kernels::scale(vector.vector, factor);
  kernels::add(momentum, vector.vector, momentum);

  const MemoryScope buffers(MemoryKind::buffers);
  const int ranks = vector.group.size(), rank = vector.group.rank();
  const Tensor gathered = Tensor::symmetric({ranks * as.bytes()}, DType::u8);
  const Tensor own = gathered.view(rank * as.bytes(), {as.bytes()});
  if (as.bytes() > 0) std::memset(static_cast<std::byte*>(own.raw()) + as.bytes() - 4, 0, 4);  // its padding
  std::vector<Message> messages;
  messages.reserve(static_cast<std::size_t>(ranks));
  for (int sender = 0; sender < ranks; ++sender) messages.push_back(message_of(gathered, as, sender));
  as_kernel("send_coefficients", [&] {
    for (const auto& its : as.matrices) {
      const ChunkTransform transform = dct_.of(its.grid);
      for_each_chunk(threads_, its, [&](std::int64_t begin, std::int64_t to, ChunkMemory& memory) {
        send_chunk(its, transform, momentum.data<float>() + begin, messages[static_cast<std::size_t>(rank)], to, memory);
      });
    }
  });
  if (ranks > 1) computation().wait(vector.group.all_gather(own, gathered, computation(), {.tag = "demo"}));
  as_kernel("signs_of_coefficients", [&] {
    for (const auto& its : as.matrices) {
      const ChunkTransform transform = dct_.of(its.grid);
      for_each_chunk(threads_, its, [&](std::int64_t begin, std::int64_t from, ChunkMemory& memory) {
        set_signs(its, transform, messages, from, vector.vector.data<float>() + begin, memory);
      });
    }
  });
}

Tensor CoefficientExchange::sign_of(const ShardedParameters::Range& range) const {
  const Place& place = places_[range.parameter];
  return parameters_.local_gradients()[place.vector].vector.view(place.first + range.first, {range.count});
}

}  // namespace stretto
