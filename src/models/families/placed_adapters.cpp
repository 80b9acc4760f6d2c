#include "models/families/placed_adapters.hpp"

#include <map>

#include "core/fail.hpp"
#include "stretto/models/families.hpp"

namespace stretto {
namespace {

// The weight of a linear layer, of which a module may be a part: of "h.0.attn.c_attn.q", "h.0.attn.c_attn.weight".
const Parameter* weight_of(const std::map<std::string, const Parameter*>& by_name, const std::string& record) {
  const auto whole = by_name.find(record + ".weight");
  if (whole != by_name.end()) return whole->second;
  return by_name.at(record.substr(0, record.rfind('.')) + ".weight");
}

}  // namespace

std::vector<PlacedAdapter> placed_adapters(const Parameters& parameters, const AdapterOptions& options,
                                           const DecoderShape& shape) {
  std::map<std::string, const Parameter*> by_name;
  for (const auto& parameter : parameters.all()) by_name.emplace(parameter->name, parameter.get());
  std::vector<PlacedAdapter> placed;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const LinearModule& module : linear_modules(shape, layer)) {
      const std::optional<Adapter> adapter = adapter_of(options, shape, module);
      if (!adapter) continue;
      PlacedAdapter& its = placed.emplace_back(PlacedAdapter{module, adapter->scale});
      its.weight = weight_of(by_name, module.record);
      its.a = by_name.at(module.record + ".lora_A.weight");
      its.b = by_name.at(module.record + ".lora_B.weight");
      std::int64_t row = 0;
      for (const ForeignRows& block : foreign_rows(shape, *its.weight, shape.sequence)) {
        if (block.tensor.name == module.path + ".weight") {
          if (its.rows.empty()) its.first_row = row;
          its.rows.push_back(block);
        }
        row += block.count;
      }
      require(!its.rows.empty(), "No rows of {} are those of {} in a file.", its.weight->name, module.path);
    }
  }
  return placed;
}

}  // namespace stretto
