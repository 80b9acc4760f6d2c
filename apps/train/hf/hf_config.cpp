#include "apps/train/hf/hf_config.hpp"

#include <nlohmann/json.hpp>

#include "apps/common/fail.hpp"
#include "apps/train/data/data_file.hpp"

namespace apps {

using nlohmann::json;
using stretto::ErrorCode;

namespace {

constexpr double norm_epsilon = stretto::Norm::Options().epsilon;

class ConfigReader {
 public:
  explicit ConfigReader(const std::string& path) : path_(path) {
    config_ = json::parse(DataFile(path).text(), nullptr, false);
    if (!config_.is_object()) fail(ErrorCode::io, "{} is no JSON object.", path);
  }

  std::int64_t number(const char* key) const {
    const json value = config_.value(key, json());
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1) {
      fail(ErrorCode::io, "{} says {} for {}, which must be a number of 1 or more.", path_, value.dump(), key);
    }
    return value.get<std::int64_t>();
  }

  // `otherwise`: what transformers takes a key that is not there for.
  void expect(const char* key, const json& otherwise, std::initializer_list<json> supported) const {
    const json value = config_.value(key, otherwise);
    for (const json& each : supported) {
      if (value == each) return;
    }
    fail(ErrorCode::io, "{} says {} for {}, but the trainer's models have {}.", path_, value.dump(), key,
         supported.begin()->dump());
  }

 private:
  std::string path_;
  json config_;
};

}  // namespace

stretto::DecoderShape read_hf_config(const std::string& directory) {
  const ConfigReader config(directory + "/config.json");
  config.expect("model_type", json(), {"gpt2"});
  const stretto::DecoderShape shape{.layers = config.number("n_layer"),
                                    .hidden = config.number("n_embd"),
                                    .heads = config.number("n_head"),
                                    .sequence = config.number("n_positions"),
                                    .vocabulary = config.number("vocab_size")};
  config.expect("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  config.expect("layer_norm_epsilon", 1e-5, {norm_epsilon});
  config.expect("n_inner", json(), {json(), shape.filled().mlp_width});
  config.expect("scale_attn_weights", true, {true});
  config.expect("scale_attn_by_inverse_layer_idx", false, {false});
  config.expect("tie_word_embeddings", true, {true});
  config.expect("add_cross_attention", false, {false});
  return shape;
}

std::string hf_config_text(const stretto::DecoderShape& shape, std::optional<std::int32_t> end_of_text) {
  const json token = end_of_text ? json(*end_of_text) : json();
  const nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                         {"model_type", "gpt2"},
                                         {"vocab_size", shape.vocabulary},
                                         {"n_positions", shape.sequence},
                                         {"n_embd", shape.hidden},
                                         {"n_layer", shape.layers},
                                         {"n_head", shape.heads},
                                         {"n_inner", nullptr},
                                         {"activation_function", "gelu_new"},
                                         {"layer_norm_epsilon", norm_epsilon},
                                         {"scale_attn_weights", true},
                                         {"scale_attn_by_inverse_layer_idx", false},
                                         {"tie_word_embeddings", true},
                                         {"embd_pdrop", 0.0},
                                         {"attn_pdrop", 0.0},
                                         {"resid_pdrop", 0.0},
                                         {"bos_token_id", token},
                                         {"eos_token_id", token},
                                         {"torch_dtype", "float32"}};
  return config.dump(2) + "\n";
}

}  // namespace apps
