#include "plan/model_text.hpp"

#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "plan/plan_options.hpp"
#include "stretto/models/families.hpp"

namespace plan_tool {

using namespace stretto;

namespace {

// The numbers of "a=1,b=2", by name.
std::map<std::string, std::int64_t> numbers_in(const std::string& list, const std::string& text,
                                               const std::string& known_names) {
  std::map<std::string, std::int64_t> numbers;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, end - at);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, equals);
    require((", " + known_names + ",").find(" " + name + ",") != std::string::npos && !name.empty(),
            "--model '{}' has '{}'; known are {}, as in layers=96.", text, item, known_names);
    const char* const first = item.data() + std::min(equals + 1, item.size());
    std::int64_t number = 0;
    const auto [behind, error] = std::from_chars(first, item.data() + item.size(), number);
    require(error == std::errc() && behind == item.data() + item.size() && number >= 1 && number <= std::int64_t{1} << 30,
            "--model '{}' has '{}'; give a whole number from 1 to 2^30.", text, item);
    numbers[name] = number;
    at = end + 1;
  }
  return numbers;
}

DecoderShape shape_in_file(const std::string& text) {
  const std::string path = config_file_of(text), rest = text.substr(path.size());
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  require(file.is_open() && content << file.rdbuf(), "--model {} cannot be read.", path);  // a directory can be opened
  DecoderShape shape = decoder_shape_from_config(content.str(), path);
  require(rest.empty() || rest.front() == ',', "--model '{}' has '{}' behind the file; write ,seq=S.", text, rest);
  if (rest.empty()) return shape;
  const auto numbers = numbers_in(rest.substr(1), text, "seq");
  if (!numbers.contains("seq")) return shape;
  require(numbers.at("seq") <= shape.sequence, "--model '{}' has sequences of more than the {} tokens of {}; give fewer.",
          text, shape.sequence, path);
  shape.sequence = numbers.at("seq");
  return shape;
}

bool is_of_numbers(const std::string& text) { return text.starts_with("gpt:") || text.starts_with("llama:"); }

}  // namespace

std::string config_file_of(const std::string& text) {
  const std::size_t suffix = text.find(".json");
  return is_of_numbers(text) || suffix == std::string::npos ? "" : text.substr(0, suffix + 5);
}

DecoderShape model_from_text(const std::string& text) {
  if (!config_file_of(text).empty()) return shape_in_file(text);
  const bool is_gpt = text.starts_with("gpt:");
  require(is_of_numbers(text),
          "--model '{}' is no model; write gpt:layers=L,hidden=H,heads=A,seq=S,vocab=V, the same with llama: and kv_heads, "
          "mlp, head_size and untied=1, or the path of a config.json.",
          text);
  const auto numbers = numbers_in(
      text.substr(text.find(':') + 1), text,
      is_gpt ? "layers, hidden, heads, seq, vocab" : "layers, hidden, heads, seq, vocab, kv_heads, mlp, head_size, untied");
  for (const char* const name : {"layers", "hidden", "heads", "seq", "vocab"}) {
    require(numbers.contains(name), "--model '{}' does not say {}; add {}=N.", text, name, name);
  }
  const auto number = [&](const char* name) { return numbers.contains(name) ? numbers.at(name) : 0; };
  DecoderShape shape{.layers = number("layers"),
                     .hidden = number("hidden"),
                     .heads = number("heads"),
                     .sequence = number("seq"),
                     .vocabulary = number("vocab"),
                     .kv_heads = number("kv_heads"),
                     .head_size = number("head_size"),
                     .mlp_width = number("mlp")};
  if (is_gpt) return shape;
  require(shape.mlp_width > 0, "--model '{}' does not say mlp; add mlp=N.", text);
  shape.tied = number("untied") == 0;
  return llama_shape(shape);
}

}  // namespace plan_tool
