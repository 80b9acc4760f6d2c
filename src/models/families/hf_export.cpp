#include <map>

#include "models/families/placed_adapters.hpp"
#include "models/families/written_directory.hpp"
#include "stretto/models/model_files.hpp"
#include "stretto/output_file.hpp"

namespace stretto {
namespace {

// Adds scale B A to the rows of a weight. Sums are formed in f64, and the result is rounded once.
void add_product(const Tensor& b, const Tensor& a, double scale, std::int64_t first_row, const Tensor& weight) {
  const std::int64_t rank = b.columns(), in = a.columns(), rows = b.size() / rank;
  std::vector<double> sums(static_cast<std::size_t>(in));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::int64_t k = 0; k < rank; ++k) {
      const double factor = b.at(row * rank + k);
      for (std::int64_t column = 0; column < in; ++column) {
        sums[static_cast<std::size_t>(column)] += factor * a.at(k * in + column);
      }
    }
    for (std::int64_t column = 0; column < in; ++column) {
      const std::int64_t i = (first_row + row) * in + column;
      weight.set(i, weight.at(i) + scale * sums[static_cast<std::size_t>(column)]);
    }
  }
}

}  // namespace

void export_hf(Trainer& trainer, const std::string& directory, std::optional<std::int32_t> end_of_text,
               const std::function<void(const std::string& directory)>& add_files) {
  const Communicator& world = trainer.mesh().world();
  const DecoderShape& shape = trainer.model().shape();
  std::multimap<const Parameter*, PlacedAdapter> adapters;
  const auto add_adapters = [&](const std::string& name) {
    for (PlacedAdapter& each : placed_adapters(trainer.parameters(), trainer.options().adapters, shape, name)) {
      each.scale *= trainer.model().weight_of_adapters(name);
      adapters.emplace(each.weight, std::move(each));
    }
  };
  if (trainer.options().adapters.any()) add_adapters("");
  for (const auto& other : trainer.options().adapters.others) add_adapters(other.first);
  const auto merge = [&](const Parameter& parameter, const Tensor& whole, const WholeOf& gather) {
    const auto [begin, end] = adapters.equal_range(&parameter);
    for (auto each = begin; each != end; ++each) {
      const PlacedAdapter& its = each->second;
      const Tensor b = gather(*its.b), a = gather(*its.a);
      if (world.rank() == 0) add_product(b, a, its.scale, its.first_row, whole);
    }
  };
  trainer.sharded().restore();
  write_directory(world, directory, "the model", [&](const std::filesystem::path& unfinished) {
    if (world.rank() == 0) {
      write_output_file(unfinished / "config.json", config_text(shape, end_of_text));
      add_files(unfinished);
    }
    const auto rows = [&](const Parameter& parameter) -> std::vector<ForeignRows> {
      if (parameter.is_adapter) return {};
      return foreign_rows(shape, parameter, shape.sequence);
    };
    write_weights(trainer.sharded(), trainer.optimizer(), unfinished / "model.safetensors", rows, {{"format", "pt"}}, merge);
  });
  trainer.sharded().store();
}

void check_hf_export(const std::string& directory, const DecoderShape& shape) {
  std::ignore = family_name(shape);
  check_new_directory(directory, "the model");
}

}  // namespace stretto
