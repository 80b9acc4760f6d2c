#include "models/adapted_modules.hpp"

#include <algorithm>
#include <set>

#include "core/fail.hpp"
#include "stretto/models/families.hpp"

namespace stretto {
namespace {

// The modules whose weights make a parameter, by their paths in Hugging Face's transformers.
std::set<std::string> modules_of(const DecoderShape& shape, const Parameter& parameter) {
  std::set<std::string> paths;
  for (const ForeignRows& rows : foreign_rows(shape, parameter, shape.sequence)) {
    paths.insert(rows.tensor.name.substr(0, rows.tensor.name.find_last_of('.')));
  }
  return paths;
}

// Of all linear modules of blocks, with an adapter or without. Vectors and tables stay as they are.
void store_linear_weights(const Parameters& parameters, StoredFormat format) {
  for (const auto& parameter : parameters.all()) {
    const bool is_matrix = parameter->name.starts_with("h.") && parameter->global_shape.size() >= 2;
    if (is_matrix && !parameter->is_adapter && !parameter->trainable) parameter->stored = format;
  }
}

}  // namespace

void freeze_base(const Parameters& parameters, const DecoderShape& shape, const AdapterOptions& adapters) {
  adapters.check(shape);
  if (!adapters.any()) return;
  std::set<std::string> unknown(adapters.modules_to_save.begin(), adapters.modules_to_save.end());
  for (const auto& parameter : parameters.all()) {
    if (parameter->is_adapter) continue;
    parameter->trainable = false;
    if (adapters.modules_to_save.empty()) continue;
    std::set<std::string> others;
    std::string saved;
    for (const std::string& path : modules_of(shape, *parameter)) {
      const auto found = std::ranges::find_if(adapters.modules_to_save,
                                              [&](const std::string& name) { return is_end_of_path(path, name); });
      if (found == adapters.modules_to_save.end()) {
        others.insert(path);
        continue;
      }
      saved = *found;
      unknown.erase(saved);
    }
    require(saved.empty() || others.empty(), "The module {} to save is trained together with {} only; name that, too.",
            saved, others.empty() ? "" : *others.begin());
    parameter->trainable = !saved.empty();
  }
  store_linear_weights(parameters, adapters.base);
  require(unknown.empty(), "There is no module {} to save in the model; give names such as {}.",
          unknown.empty() ? "" : *unknown.begin(), shape.tied ? "ln_f or norm" : "lm_head");
}

}  // namespace stretto
