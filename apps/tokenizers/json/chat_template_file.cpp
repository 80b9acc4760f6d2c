#include "apps/tokenizers/json/chat_template_file.hpp"

#include <filesystem>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/json/json_part.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

namespace fs = std::filesystem;

std::string chat_template_beside(const std::string& path) {
  const fs::path program = fs::path(path).replace_filename("chat_template.jinja");
  if (fs::exists(program)) return DataFile(program).text();
  const fs::path file = fs::path(path).replace_filename("tokenizer_config.json");
  if (!fs::exists(file)) return {};
  const nlohmann::json json = nlohmann::json::parse(DataFile(file).text(), nullptr, false);
  if (!json.is_object()) fail(stretto::ErrorCode::io, "{} is no JSON object.", file.string());
  const JsonPart config(json, file, "values");
  if (!config.has("chat_template")) return {};
  if (!config.at("chat_template").value().is_array()) return config.text("chat_template");
  for (const JsonPart& each : config.list("chat_template")) {
    if (each.text("name") == "default") return each.text("template");
  }
  return {};
}

}  // namespace apps
