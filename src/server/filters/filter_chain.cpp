#include "server/filters/filter_chain.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "server/parts/tensor_bytes.hpp"
#include "transport/bootstrap/packing.hpp"

namespace stretto {
namespace {

// How a message names the elements of a dense part that it has: all; a bit for each; or 4 bytes for each that it has.
enum Elements : std::int64_t { all_elements, bit_each, listed };

bool ascend(const std::vector<std::uint64_t>& keys) {
  return std::ranges::adjacent_find(keys, std::ranges::greater_equal()) == keys.end();
}

Bytes bits_of(const std::vector<std::uint64_t>& elements, std::int64_t count) {
  Bytes bits(static_cast<std::size_t>((count + 7) / 8));
  for (const std::uint64_t element : elements) bits[element / 8] |= std::byte{1} << (element % 8);
  return bits;
}

std::vector<std::uint64_t> elements_of(const Bytes& bits) {
  std::vector<std::uint64_t> elements;
  for (std::uint64_t i = 0; i < 8 * bits.size(); ++i) {
    if ((bits[i / 8] & std::byte{1} << (i % 8)) != std::byte{}) elements.push_back(i);
  }
  return elements;
}

}  // namespace

void check_filters(const ServedTable& table) {
  for (std::size_t i = 0; i < table.filters.size(); ++i) {
    const FilterKind& filter = table.filters[i];
    const bool is_last = i + 1 == table.filters.size();
    require(table.width != ServedTable::any_length,
            "Table {} has rows of any length, and its filter {} needs rows of equal length; leave it out, or give a width.",
            table.name, filter.name);
    require(table.dtype == DType::f32, "Table {} has elements of {}; its filter {} needs f32.", table.name,
            name(table.dtype), filter.name);
    require(!filter.needs_all || (!table.is_sparse() && i == 0),
            "Filter {} of table {} needs all elements of a dense table; give sparse tables another one, and none before it.",
            filter.name, table.name);
    require(!filter.packs || is_last, "Filter {} of table {} packs elements, which {} behind it cannot read; give it last.",
            filter.name, table.name, is_last ? "none" : table.filters[i + 1].name);
  }
}

FilterChain::FilterChain(const ServedTable& table, std::int64_t count, std::uint64_t seed)
    : is_sparse_(table.is_sparse()),
      packs_(!table.filters.empty() && table.filters.back().packs),
      count_(count),
      width_(is_sparse_ ? table.width : 1) {
  for (const FilterKind& kind : table.filters) {
    filters_.push_back(kind.make({.count = count, .width = width_, .seed = split_mixed(seed + filters_.size())}));
  }
}

void FilterChain::check_encoded(const PushedMessage& message) const {
  require(ascend(message.keys), "Filters have left {} keys of a push that do not ascend; encode() must keep their order.",
          message.keys.size());
  require(is_sparse_ || message.keys.empty() || message.keys.back() < static_cast<std::uint64_t>(count_),
          "Filters have left element {} of a part of {} in a push; encode() may only leave elements out.",
          message.keys.empty() ? 0 : message.keys.back(), count_);
  require(message.notes.size() <= filters_.size(), "{} filters have given a push {} notes; encode() may add one each.",
          filters_.size(), message.notes.size());
}

Tensor FilterChain::encoded(KeyedRows rows) {
  PushedMessage message{.keys = std::move(rows.keys), .all = !is_sparse_, .rows = std::move(rows.rows)};
  for (const auto& filter : filters_) filter->encode(message);
  check_encoded(message);
  Elements elements = all_elements;
  Bytes keys = bytes_of(message.keys);
  if (!is_sparse_ && !message.all) {
    const bool are_few = 32 * std::ssize(message.keys) < count_;
    elements = are_few ? listed : bit_each;
    keys = are_few ? bytes_of(std::vector<std::uint32_t>(message.keys.begin(), message.keys.end()))
                   : bits_of(message.keys, count_);
  }
  const std::vector<std::int64_t> head{elements, std::ssize(message.notes)};
  // Each piece has 8 bytes before it: see keys_begin.
  const Bytes all = packed({bytes_of(head), keys, bytes_in(message.rows), packed(message.notes)});
  Tensor bytes({std::ssize(all)}, DType::u8);
  bytes.copy_from_host(all.data());
  return bytes;
}

KeyedRows FilterChain::decoded(const Tensor& bytes) const {
  const std::vector<Bytes> pieces = unpacked(bytes_in(bytes), 4);
  const auto head = values_of<std::int64_t>(pieces[0]);
  ensure(head.size() == 2, "A filtered push came with {} numbers at its head instead of 2.", head.size());
  ensure(head[0] >= all_elements && head[0] <= listed && head[1] >= 0 && head[1] <= std::ssize(filters_),
         "A filtered push came in form {} with {} notes of {} filters.", head[0], head[1], filters_.size());
  PushedMessage message{.all = !is_sparse_ && head[0] == all_elements};
  if (is_sparse_) {
    message.keys = values_of<std::uint64_t>(pieces[1]);
  } else if (head[0] == listed) {
    const auto elements = values_of<std::uint32_t>(pieces[1]);
    message.keys.assign(elements.begin(), elements.end());
  } else if (head[0] == bit_each) {
    message.keys = elements_of(pieces[1]);
  }
  const DType dtype = packs_ ? DType::u8 : DType::f32;
  if (!pieces[2].empty()) {
    message.rows = Tensor({std::ssize(pieces[2]) / static_cast<std::int64_t>(size_of(dtype))}, dtype);
    message.rows.copy_from_host(pieces[2].data());
  }
  message.notes = unpacked(pieces[3], static_cast<int>(head[1]));
  for (auto filter = filters_.rbegin(); filter != filters_.rend(); ++filter) (*filter)->decode(message);
  ensure(ascend(message.keys), "A filtered push came with {} keys that do not ascend.", message.keys.size());
  const std::int64_t rows = message.all ? count_ : std::ssize(message.keys);
  ensure(message.rows.size() == rows * width_, "A filtered push came with {} elements for {} rows.", message.rows.size(),
         rows);
  if (is_sparse_) return {std::move(message.keys), rows > 0 ? message.rows.reshaped({rows, width_}) : Tensor()};
  return {{}, message.all ? message.rows : spread(message.keys, message.rows)};
}

Tensor FilterChain::spread(const std::vector<std::uint64_t>& elements, const Tensor& rows) const {
  Tensor all = Tensor::zeros({count_}, DType::f32);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ensure(elements[i] < static_cast<std::uint64_t>(count_), "A filtered push came with element {} of {}.", elements[i],
           count_);
    all.data<float>()[elements[i]] = rows.data<float>()[i];
  }
  return all;
}

void FilterChain::see_pulled(const std::vector<std::uint64_t>& keys, const Tensor& rows) {
  for (const auto& filter : filters_) filter->see_pulled(keys, rows);
}

}  // namespace stretto
