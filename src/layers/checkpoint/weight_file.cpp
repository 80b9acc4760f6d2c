#include "stretto/layers/weight_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "core/fail.hpp"
#include "layers/checkpoint/files/safetensors.hpp"
#include "layers/checkpoint/foreign_layout.hpp"
#include "layers/checkpoint/whole_values.hpp"

namespace stretto {
namespace {

using Runs = std::vector<ForeignLayout::Run>;

constexpr std::int64_t most_at_once = std::int64_t{1} << 16;  // numbers of a file in memory

std::string names_of(const ForeignLayout& layout) {
  std::vector<std::string> names;
  for (const ForeignTensor& tensor : layout.tensors()) names.push_back(tensor.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// By record; nothing for those that are not in the file, and for all but the first of one parameter.
std::vector<std::optional<ForeignLayout>> layouts_to_write(const Parameters& parameters, const ForeignRowsOf& foreign) {
  std::vector<std::optional<ForeignLayout>> layouts(parameters.all().size());
  std::set<std::string> names, parameters_seen;
  for (const auto& parameter : parameters.all()) {
    if (!parameters_seen.insert(parameter->global_name()).second) continue;
    std::vector<ForeignRows> rows = foreign(*parameter);
    if (rows.empty()) continue;
    ForeignLayout& layout = layouts[parameter->index].emplace(*parameter, std::move(rows));
    layout.require_whole_tensors();
    for (const ForeignTensor& tensor : layout.tensors()) {
      require(names.insert(tensor.name).second, "{} would be written of {} and of another parameter.", tensor.name,
              parameter->name);
    }
  }
  return layouts;
}

// The tensors of a file that a parameter's elements make.
std::vector<Tensor> as_stored(const ForeignLayout& layout, const Tensor& whole) {
  std::vector<Tensor> stored;
  for (const ForeignTensor& tensor : layout.tensors()) stored.emplace_back(tensor.shape, DType::f32, Device::cpu);
  Runs runs;
  layout.append_runs(0, whole.size(), 0, runs);
  for (const ForeignLayout::Run& run : runs) {
    const ForeignTensor& tensor = layout.tensors()[run.tensor];
    const std::int64_t rows = tensor.rows(), columns = tensor.columns();
    float* const to = stored[run.tensor].data<float>();
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t at = run.element + i;
      to[tensor.transposed ? at % columns * rows + at / columns : at] = static_cast<float>(whole.at(run.to + i));
    }
  }
  return stored;
}

void store(const double* numbers, std::int64_t count, const Tensor& values, std::int64_t to) {
  switch (values.dtype()) {
    case DType::f64: std::copy_n(numbers, count, values.data<double>() + to); return;
    case DType::f32:
      std::transform(numbers, numbers + count, values.data<float>() + to, [](double x) { return static_cast<float>(x); });
      return;
    default:  // of a frozen parameter
      for (std::int64_t i = 0; i < count; ++i) values.set(to + i, numbers[i]);
  }
}

void read_rows(const WeightSource& source, const ForeignTensor& tensor, const Runs& runs, const Tensor& values) {
  std::vector<double> numbers;
  for (const ForeignLayout::Run& run : runs) {
    numbers.resize(static_cast<std::size_t>(std::min(run.count, most_at_once)));
    for (std::int64_t done = 0; done < run.count; done += most_at_once) {
      const std::int64_t count = std::min(run.count - done, most_at_once);
      source.read(tensor.name, run.element + done, count, numbers.data());
      store(numbers.data(), count, values, run.to + done);
    }
  }
}

// Each run lies within one column of the file's matrix [columns, rows], which is read row by row: to read column by column
// would take a piece of the file for every number.
void read_transposed(const WeightSource& source, const ForeignTensor& tensor, const Runs& runs, const Tensor& values) {
  struct Strip {
    std::int64_t row, column, to, count;
  };
  std::vector<Strip> strips;
  const std::int64_t rows = tensor.rows(), columns = tensor.columns();
  std::int64_t first_row = rows, end_row = 0, first_column = columns, end_column = 0;
  for (const ForeignLayout::Run& run : runs) {
    const Strip strip{run.element / columns, run.element % columns, run.to, run.count};
    first_row = std::min(first_row, strip.row);
    end_row = std::max(end_row, strip.row + 1);
    first_column = std::min(first_column, strip.column);
    end_column = std::max(end_column, strip.column + strip.count);
    strips.push_back(strip);
  }
  std::vector<double> numbers(static_cast<std::size_t>(std::clamp<std::int64_t>(end_row - first_row, 0, most_at_once)));
  for (std::int64_t from = first_row; from < end_row; from += most_at_once) {
    const std::int64_t count = std::min(end_row - from, most_at_once);
    for (std::int64_t column = first_column; column < end_column; ++column) {
      source.read(tensor.name, column * rows + from, count, numbers.data());
      for (const Strip& strip : strips) {
        const std::int64_t i = column - strip.column, row = strip.row - from;
        if (i < 0 || i >= strip.count || row < 0 || row >= count) continue;
        store(&numbers[static_cast<std::size_t>(row)], 1, values, strip.to + i);
      }
    }
  }
}

void read_range(const WeightSource& source, const Parameter& parameter, const ForeignLayout& layout,
                const ShardedParameters::Range& range, const Tensor& values) {
  Runs all;
  for_each_run(parameter, range.first, range.count,
               [&](std::int64_t to, std::int64_t whole, std::int64_t count) { layout.append_runs(whole, count, to, all); });
  std::vector<Runs> runs(layout.tensors().size());
  for (const ForeignLayout::Run& run : all) runs[run.tensor].push_back(run);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ForeignTensor& tensor = layout.tensors()[i];
    (tensor.transposed ? read_transposed : read_rows)(source, tensor, runs[i], values);
  }
}

}  // namespace

void write_weights(const ShardedParameters& parameters, const Optimizer& optimizer, const std::string& path,
                   const ForeignRowsOf& foreign, const std::map<std::string, std::string>& metadata, const EditWhole& edit) {
  const std::vector<std::optional<ForeignLayout>> layouts = layouts_to_write(parameters.parameters(), foreign);
  parameters.traffic().wait_for_values();
  const WholeValues values(parameters, optimizer);
  std::unique_ptr<SafetensorsWriter> file;
  if (parameters.mesh().world().rank() == 0) {
    std::vector<TensorEntry> entries;
    for (const std::optional<ForeignLayout>& layout : layouts) {
      for (const ForeignTensor& tensor : layout ? layout->tensors() : std::vector<ForeignTensor>()) {
        entries.push_back({tensor.name, safetensors_type(DType::f32), tensor.shape});
      }
    }
    file = std::make_unique<SafetensorsWriter>(path, entries, metadata);
  }
  for (const auto& parameter : parameters.parameters().all()) {
    if (!layouts[parameter->index]) continue;
    const Tensor whole = values.gather(*parameter);
    if (edit) edit(*parameter, whole, [&](const Parameter& other) { return values.gather(other); });
    if (!file) continue;
    for (const Tensor& stored : as_stored(*layouts[parameter->index], whole)) file->write(stored.raw(), stored.bytes());
  }
  if (file) file->finish();
}

void read_weights(const ShardedParameters& parameters, Optimizer& optimizer, const WeightSource& source,
                  const ForeignRowsOf& foreign) {
  std::map<std::string, const StoredTensor*> stored;
  std::set<std::string> files;
  for (const StoredTensor& tensor : source.tensors()) {
    stored.emplace(tensor.name, &tensor);
    files.insert(source.file_of(tensor.name));
  }
  const WholeValues values(parameters, optimizer);
  for (const auto& parameter : parameters.parameters().all()) {
    std::vector<ForeignRows> rows = foreign(*parameter);
    if (rows.empty()) continue;
    const ForeignLayout layout(*parameter, std::move(rows));
    for (const ForeignTensor& tensor : layout.tensors()) {
      const auto found = stored.find(tensor.name);
      if (found == stored.end()) fail(ErrorCode::io, "{} has no tensor {}.", fmt::join(files, ", "), tensor.name);
      const Shape& shape = found->second->shape;
      require(shape == tensor.shape, "{} has {} of shape [{}], but this model needs [{}].", source.file_of(tensor.name),
              tensor.name, fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
    }
    values.set(
        *parameter,
        [&](const ShardedParameters::Range& range, const Tensor& target) {
          read_range(source, *parameter, layout, range, target);
        },
        names_of(layout), source.file_of(layout.tensors().front().name));
  }
}

}  // namespace stretto
