#include "layers/tensor_parallel/linear_adapters.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

void copy(const Tensor& from, const Tensor& to) {
  as_kernel("copy", [&] { to.copy_from(from); });
}

// The product is the gradient, or adds to it.
void add_product(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, Parameter& parameter) {
  const bool overwrite = parameter.take_unset();
  kernels::gemm(a, transpose_a, b, transpose_b, parameter.gradient, !overwrite);
}

int parts_of(const Parameter& weight) {
  return weight.global_shape.size() > 2 ? static_cast<int>(weight.global_shape.front()) : 1;
}

}  // namespace

LinearAdapters::LinearAdapters(Parameters& parameters, const std::string& name, const AdapterSet& adapters,
                               const Parameter& weight, const std::vector<NamedParts>& named,
                               const TensorParallel& tensor_parallel, bool divides_outputs)
    : in_(weight.extents.back()),
      out_(in_ > 0 ? weight.elements() / in_ : 0),
      dropout_(adapters.dropout),
      weights_(adapters.weights),
      first_column_(weight.first.back()) {
  std::vector<NamedParts> candidates = named;
  candidates.insert(candidates.begin(), {"", 0, parts_of(weight)});
  const auto add_set = [&](const std::string& set, const std::map<std::string, Adapter>& by_record) {
    for (const NamedParts& part : candidates) {
      const auto found = by_record.find(name + part.name);
      if (found == by_record.end()) continue;
      add(parameters, found->first, part, found->second, set, adapters, weight, tensor_parallel, divides_outputs);
    }
  };
  add_set("", adapters.by_record);
  trained_rank_ = rank_;
  for (const auto& [set, by_record] : adapters.others) add_set(set, by_record);
}

void LinearAdapters::add(Parameters& parameters, const std::string& record, const NamedParts& part, const Adapter& adapter,
                         const std::string& set, const AdapterSet& all, const Parameter& weight,
                         const TensorParallel& tensor_parallel, bool divides_outputs) {
  const int ranks = tensor_parallel.size(), own = tensor_parallel.rank();
  require(weight.part_of.empty(),
          "{} has an adapter, which cannot be divided over {} tensor-parallel ranks, more than there are heads of keys and "
          "values; choose fewer ranks, or other modules.",
          record, ranks);
  const Shape& shape = weight.global_shape;
  const std::int64_t in = shape.back(), rank = adapter.rank;
  const bool trained = set.empty();
  const Initial drawn = all.gaussian ? Initial{.deviation = 1 / static_cast<double>(rank)}
                                     : Initial{.reach = 1 / std::sqrt(static_cast<double>(in))};
  const Parameter::Traits traits_a{
      .initial = trained ? drawn : Initial{}, .trainable = trained, .overwrites_gradient = true};
  const Parameter::Traits traits_b{.trainable = trained, .overwrites_gradient = true};
  const std::string suffix = trained ? "weight" : set + ".weight";
  const std::string name_a = record + ".lora_A." + suffix, name_b = record + ".lora_B." + suffix;
  Shape shape_b{shape[shape.size() - 2], rank};
  if (part.count > 1) shape_b.insert(shape_b.begin(), part.count);
  // Each rank computes the part of a whole factor's gradient that comes from its outputs, or its inputs.
  const Axes of_parts = token_axes | Axis::tensor;
  Parameter a = divides_outputs ? Parameter::whole(name_a, {rank, in}, of_parts, traits_a)
                                : Parameter::divided(name_a, {rank, in}, 1, ranks, own, traits_a);
  Parameter b = divides_outputs ? Parameter::divided(name_b, shape_b, shape_b.size() - 2, ranks, own, traits_b)
                                : Parameter::whole(name_b, shape_b, of_parts, traits_b);
  a.is_adapter = b.is_adapter = true;
  const std::int64_t rows_of_part = out_ / parts_of(weight);
  all_.push_back({&parameters.add(std::move(a)), &parameters.add(std::move(b)), adapter.scale, rank, rank_,
                  part.first * rows_of_part, part.count * rows_of_part, XXH3_64bits(name_a.data(), name_a.size()), set});
  rank_ += rank;
}

double LinearAdapters::scale_of(const One& one) const {
  if (weights_ == nullptr) return one.scale;
  const auto found = weights_->find(one.set);
  return found == weights_->end() ? one.scale : found->second * one.scale;
}

std::vector<Parameter*> LinearAdapters::parameters() const {
  std::vector<Parameter*> result;
  for (const One& one : all_) {
    result.push_back(one.a);
    result.push_back(one.b);
  }
  return result;
}

bool LinearAdapters::any_trainable() const {
  return std::ranges::any_of(all_, [](const One& one) { return one.a->trainable || one.b->trainable; });
}

LowRank LinearAdapters::factors(const Tensor& draws) const {
  if (all_.empty()) return {};
  const DType dtype = all_.front().a->value.dtype();
  LowRank result{Tensor({out_, rank_}, dtype), Tensor({rank_, in_}, dtype)};
  result.dropout = {.probability = dropout_, .draws = draws, .first_column = first_column_};
  for (const One& one : all_) result.dropout.parts.push_back({one.first, one.rank, one.number, one.set.empty()});
  if (!is_one_of_all()) as_kernel("zero", [&] { result.b.zero(); });
  for (const One& one : all_) {
    const Tensor a = result.a.view(one.first * in_, {one.rank, in_});
    copy(one.a->value, a);
    if (const double scale = scale_of(one); scale != 1) kernels::scale(a, scale);
    kernels::copy_columns(one.b->value, 0, result.b.view(one.first_row * rank_, {one.rows, rank_}), one.first, one.rank);
  }
  return result;
}

void LinearAdapters::add_columns(const One& one, const Tensor& db, std::int64_t first_column) const {
  const Tensor& gradient = one.b->gradient;
  const bool overwrite = one.b->take_unset();
  const Tensor its = overwrite ? gradient : Tensor(gradient.shape(), gradient.dtype());
  kernels::copy_columns(db.view(one.first_row * db.columns(), {one.rows, db.columns()}), first_column, its, 0, one.rank);
  if (!overwrite) kernels::add(gradient, its, gradient);
}

void LinearAdapters::add_gradients(const LowRank& of, const Tensor& x, const Tensor& dy) const {
  if (!any_trainable()) return;
  const MemoryScope scratch(MemoryKind::other);
  if (of.dropout.any()) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].set.empty()) add_dropped_gradients(i, of, x, dy);
    }
    return;
  }
  const Tensor a = of.a.view(0, {trained_rank_, in_});
  Tensor b = of.b;
  if (trained_rank_ < rank_) {
    b = Tensor({out_, trained_rank_}, of.b.dtype());
    kernels::copy_columns(of.b, 0, b, 0, trained_rank_);
  }
  const Tensor narrow({x.rows(), trained_rank_}, x.dtype());
  kernels::gemm(x, Transpose::no, a, Transpose::yes, narrow);
  Tensor db;
  for (const One& one : all_) {
    if (!one.b->trainable) continue;
    if (is_one_of_all()) {
      add_product(dy, Transpose::yes, narrow, Transpose::no, *one.b);
      continue;
    }
    if (!db) {
      db = Tensor({out_, trained_rank_}, one.b->gradient.dtype());
      kernels::gemm(dy, Transpose::yes, narrow, Transpose::no, db);
    }
    add_columns(one, db, one.first);
  }
  const Tensor dnarrow({trained_rank_, dy.rows()}, dy.dtype());  // transposed, so that an adapter's are rows
  kernels::gemm(b, Transpose::yes, dy, Transpose::yes, dnarrow);
  for (const One& one : all_) {
    if (!one.a->trainable) continue;
    const Tensor its = dnarrow.view(one.first * dy.rows(), {one.rank, dy.rows()});
    if (const double scale = scale_of(one); scale != 1) kernels::scale(its, scale);
    add_product(its, Transpose::no, x, Transpose::no, *one.a);
  }
}

void LinearAdapters::add_dropped_gradients(std::size_t i, const LowRank& of, const Tensor& x, const Tensor& dy) const {
  const One& one = all_[i];
  const Tensor dropped(x.shape(), x.dtype());
  of.dropout.drop(of.dropout.parts[i], x, 0, dropped);
  if (one.b->trainable) {
    const Tensor narrow({x.rows(), one.rank}, x.dtype());
    kernels::gemm(dropped, Transpose::no, of.a.view(one.first * in_, {one.rank, in_}), Transpose::yes, narrow);
    if (is_one_of_all()) {
      add_product(dy, Transpose::yes, narrow, Transpose::no, *one.b);
    } else {
      const Tensor db({out_, one.rank}, one.b->gradient.dtype());
      kernels::gemm(dy, Transpose::yes, narrow, Transpose::no, db);
      add_columns(one, db, 0);
    }
  }
  if (!one.a->trainable) return;
  const Tensor b({out_, one.rank}, of.b.dtype()), dnarrow({one.rank, dy.rows()}, dy.dtype());
  kernels::copy_columns(of.b, one.first, b, 0, one.rank);
  kernels::gemm(b, Transpose::yes, dy, Transpose::yes, dnarrow);
  if (const double scale = scale_of(one); scale != 1) kernels::scale(dnarrow, scale);
  add_product(dnarrow, Transpose::no, dropped, Transpose::no, *one.a);
}

// The layer's own products stay the first of forward and the last of input.
void LinearAdapters::add_cost(const CostedTokens& tokens, LayerCost& cost) const {
  if (all_.empty()) return;
  const std::int64_t count = tokens.count;
  const std::vector<Product> in_first{{count, rank_, in_}, {count, out_, rank_}};
  cost.forward.products.insert(cost.forward.products.end(), in_first.begin(), in_first.end());
  const std::vector<Product> out_first{{count, rank_, out_}, {count, in_, rank_}};
  cost.input.products.insert(cost.input.products.begin(), out_first.begin(), out_first.end());
  for (const One& one : all_) cost.parameters += one.a->elements() + one.b->elements();
  const auto parts = static_cast<double>(std::ranges::count_if(all_, [](const One& one) { return one.set.empty(); }));
  const auto input = static_cast<double>(tokens.bytes(count * in_));
  if (dropout_ > 0) {
    cost.forward = cost.forward + PassCost{.bytes = 2 * parts * input, .kernels = 2 * parts};
    cost.input = cost.input + PassCost{.bytes = 5 * parts * input, .kernels = 3 * parts};
  }
  const std::int64_t factors = tokens.bytes(rank_ * (in_ + out_));
  cost.backward += factors;
  if (!any_trainable()) return;
  cost.later += factors;
  if (dropout_ > 0) cost.weight = cost.weight + PassCost{.bytes = 2 * parts * input, .kernels = 2 * parts};
  const std::int64_t rank = trained_rank_;
  const std::vector<Product> gradients{
      {count, rank, in_}, {out_, rank, count, true}, {rank, count, out_}, {rank, in_, count, true}};
  cost.weight.products.insert(cost.weight.products.end(), gradients.begin(), gradients.end());
}

}  // namespace stretto
