#include "models/families/placed_adapters.hpp"

#include <algorithm>
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

std::vector<PlacedAdapter> placed_adapters(const Parameters& parameters, const AdapterOptions& all,
                                           const DecoderShape& shape, const std::string& name) {
  const auto other = std::ranges::find_if(all.others, [&](const auto& each) { return each.first == name; });
  if (!name.empty() && other == all.others.end())
    fail(ErrorCode::io, "There are no adapters '{}' beside the trained ones; give the name of some.", name);
  const AdapterOptions& options = other == all.others.end() ? all : other->second;
  const std::string suffix = name.empty() ? "weight" : name + ".weight";
  std::map<std::string, const Parameter*> by_name;
  for (const auto& parameter : parameters.all())
    by_name.emplace(parameter->global_name(), parameter.get());  // of tiles the first
  std::vector<PlacedAdapter> placed;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const LinearModule& module : linear_modules(shape, layer)) {
      const std::optional<Adapter> adapter = adapter_of(options, shape, module);
      if (!adapter) continue;
      PlacedAdapter& its = placed.emplace_back(PlacedAdapter{module, adapter->scale});
      its.weight = weight_of(by_name, module.record);
      its.a = by_name.at(module.record + ".lora_A." + suffix);
      its.b = by_name.at(module.record + ".lora_B." + suffix);
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
