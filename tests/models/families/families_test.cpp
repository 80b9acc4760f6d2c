#include "stretto/models/families.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "stretto/models/decoder_cost.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using Kind = RotaryScaling::Kind;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

DecoderShape shape_of(const json& config) { return decoder_shape_from_config(config.dump(), "dir/config.json"); }

json llama_config() {
  return {{"model_type", "llama"},   {"vocab_size", 48},       {"max_position_embeddings", 64}, {"hidden_size", 32},
          {"intermediate_size", 40}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},      {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-5},    {"rope_theta", 10000.0},  {"tie_word_embeddings", true}};
}

struct Published {
  const char* name;
  std::int64_t parameters;
  const char* family;
  const char* config;
};

// As their authors published them, without keys that say nothing about the shape.
const Published models[] = {
    {"Llama 3.2 1B", 1'235'814'400, "llama",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
         "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
         "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
         "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
         "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
         "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
         "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})"},
    {"Llama 3.1 8B", 8'030'261'248, "llama",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
         "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
         "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
         "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
         "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
         "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})"},
    {"Qwen 2.5 0.5B", 494'032'768, "qwen2",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
         "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
         "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
         "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
         "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
         "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen 3 0.6B", 596'049'920, "qwen3",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
         "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
         "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
         "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
         "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
         "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Mistral 7B v0.1", 7'241'732'096, "mistral",
     R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
         "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
         "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
         "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32000})"},
    {"SmolLM2-135M", 134'515'008, "llama",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
         "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
         "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
         "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
         "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
         "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49152})"}};

TEST(Families, HaveThePublishedNumbersOfParameters) {
  for (const Published& model : models) {
    const DecoderShape shape = decoder_shape_from_config(model.config, "config.json");
    EXPECT_EQ(parameters_of(shape.filled()), model.parameters) << model.name;
    EXPECT_EQ(family_name(shape), model.family) << model.name;
    DecoderShape control = shape.filled();
    control.tied = !shape.tied;
    EXPECT_EQ(std::abs(parameters_of(control) - model.parameters), shape.vocabulary * shape.hidden) << model.name;
  }
}

// A Mistral without a window is a Llama.
TEST(Families, WriteWhatTheyRead) {
  std::vector<DecoderShape> shapes;
  for (const Published& model : models) shapes.push_back(decoder_shape_from_config(model.config, "config.json").filled());
  DecoderShape shape = shape_of(llama_config()).filled();
  shape.biases = {.qkv = true, .projection = true, .mlp = true};
  shapes.push_back(shape);
  shape.tied = false;
  shape.norm.epsilon = 0.1;
  shape.rope_theta = 123456.789;
  shape.head_size = 10;
  for (const RotaryScaling& scaling :
       {RotaryScaling{.kind = Kind::linear, .factor = 2.5},
        RotaryScaling{.kind = Kind::dynamic, .factor = 2, .original_positions = 64},
        RotaryScaling{.kind = Kind::llama3, .factor = 8, .original_positions = 32, .low_frequency_factor = 2},
        RotaryScaling{.kind = Kind::yarn, .factor = 4, .original_positions = 16, .beta_fast = 20, .beta_slow = 2},
        RotaryScaling{.kind = Kind::yarn,
        .factor = 4,
        .original_positions = 16,
        .truncate = false,
        .mscale = 0.7,
        .mscale_all_dim = 0.5},
        RotaryScaling{.kind = Kind::yarn, .factor = 4, .original_positions = 16, .attention_factor = 1.25}}) {
    shape.rope_scaling = scaling;
    shapes.push_back(shape);
  }
  shapes.push_back(DecoderShape{}.filled());  // GPT-2
  for (const DecoderShape& each : shapes) {
    const std::string config = config_text(each, 7);
    EXPECT_EQ(decoder_shape_from_config(config, "config.json").filled(), each) << config;
    EXPECT_EQ(json::parse(config)["eos_token_id"], 7);
  }
  json no_window = json::parse(models[4].config);
  no_window["sliding_window"] = nullptr;
  EXPECT_EQ(family_name(shape_of(no_window)), "llama");
  no_window.erase("sliding_window");
  EXPECT_EQ(shape_of(no_window).window, 4096);  // transformers' default
}

// Both forms say the same; where there are both, transformers prefers rope_scaling.
TEST(Families, ReadBothFormsOfRotaryPositions) {
  const json scalings[] = {{{"rope_type", "default"}},
                           {{"rope_type", "linear"}, {"factor", 2.0}},
                           {{"rope_type", "dynamic"}, {"factor", 2}},
                           {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
                           {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 16}}};
  for (const json& scaling : scalings) {
    json old = llama_config(), older = llama_config(), recent = llama_config(), both = llama_config();
    old["rope_theta"] = older["rope_theta"] = both["rope_theta"] = 500.0;
    old["rope_scaling"] = older["rope_scaling"] = both["rope_scaling"] = scaling;
    older["rope_scaling"]["type"] = scaling["rope_type"];
    older["rope_scaling"].erase("rope_type");
    recent.erase("rope_theta");
    recent["rope_parameters"] = scaling;
    recent["rope_parameters"]["rope_theta"] = 500.0;
    both["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 16.0}, {"rope_theta", 3.0}};
    const DecoderShape shape = shape_of(old);
    EXPECT_EQ(shape.rope_theta, 500);
    EXPECT_EQ(shape.rope_scaling.kind == Kind::none, scaling["rope_type"] == "default");
    EXPECT_EQ(shape_of(older), shape) << older;
    EXPECT_EQ(shape_of(recent), shape) << recent;
    EXPECT_EQ(shape_of(both), shape) << both;
    recent["rope_parameters"].erase("rope_theta");
    EXPECT_NE(shape_of(recent), shape) << "the control: another theta";
    recent["rope_theta"] = 500.0;
    EXPECT_EQ(shape_of(recent), shape) << recent;
  }
}

// A model that is cut to shorter sequences scales as before.
TEST(Families, KeepTheOriginalPositionsOfDynamicScaling) {
  json config = llama_config();
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  DecoderShape shape = shape_of(config);
  shape.sequence = 16;
  EXPECT_EQ(decoder_shape_from_config(config_text(shape), "config.json").rope_scaling, shape.rope_scaling);
}

// The sentence about a change of a configuration that is good without it.
std::string refusal(json config, const char* key, const json& value, const char* inside = nullptr) {
  EXPECT_EQ(sentence_of([&] { shape_of(config); }), "");
  (inside != nullptr ? config[inside][key] : config[key]) = value;
  return sentence_of(ErrorCode::io, [&] { shape_of(config); });
}

json config_of(const char* model_type) {
  json config = llama_config();
  config["model_type"] = model_type;
  return config;
}

TEST(Families, RefuseWhatADecoderDoesNotCompute) {
  const auto names = [](const std::string& key, const json& value) {
    return AllOf(StartsWith("dir/config.json"), HasSubstr(key), HasSubstr(value.dump()), EndsWith("."));
  };
  struct Case {
    const char* model_type;
    const char* key;
    json value;
  };
  const Case cases[] = {{"llama", "model_type", "gemma"},
                        {"llama", "hidden_act", "gelu"},
                        {"llama", "hidden_act", 3},
                        {"llama", "layer_types", json::array({"sliding_attention"})},
                        {"llama", "attention_dropout", 0.5},
                        {"llama", "partial_rotary_factor", 0.5},
                        {"llama", "attention_bias", "yes"},
                        {"llama", "mlp_bias", 1},
                        {"llama", "tie_word_embeddings", "true"},
                        {"llama", "rope_scaling", "linear"},
                        {"llama", "rope_parameters", 7},
                        {"llama", "rope_theta", "1e4"},
                        {"llama", "rope_theta", -1},
                        {"llama", "rms_norm_eps", 0},
                        {"llama", "head_dim", 0},
                        {"llama", "hidden_size", "32"},
                        {"llama", "hidden_size", 32.5},
                        {"llama", "num_hidden_layers", nullptr},
                        {"llama", "num_hidden_layers", -2},
                        {"llama", "num_attention_heads", 0},
                        {"llama", "num_key_value_heads", "2"},
                        {"llama", "vocab_size", true},
                        {"llama", "intermediate_size", json::object()},
                        {"llama", "max_position_embeddings", 0},
                        {"mistral", "sliding_window", 0},
                        {"qwen2", "use_sliding_window", true},
                        {"qwen3", "use_sliding_window", true},
                        {"qwen3", "attention_bias", true}};
  for (const Case& each : cases) {
    EXPECT_THAT(refusal(config_of(each.model_type), each.key, each.value),
                names(each.key, each.value.is_array() ? each.value[0] : each.value))
        << each.key;
  }
  for (const char* const key : {"model_type", "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size",
                                "num_hidden_layers", "num_attention_heads"}) {
    json config = llama_config();
    config.erase(key);
    EXPECT_THAT(sentence_of(ErrorCode::io, [&] { shape_of(config); }), names(key, nullptr));
  }
  for (const char* const form : {"rope_scaling", "rope_parameters"}) {
    json config = llama_config();
    config[form] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
    const std::pair<const char*, json> values[] = {{"rope_type", "longrope"},
                                                   {"rope_type", 1},
                                                   {"factor", "8"},
                                                   {"factor", nullptr},
                                                   {"low_freq_factor", nullptr},
                                                   {"high_freq_factor", 0},
                                                   {"original_max_position_embeddings", 1.5},
                                                   {"partial_rotary_factor", 0.25},
                                                   {"full_attention", {{"rope_theta", 3.0}}}};
    for (const auto& [key, value] : values) {
      EXPECT_THAT(refusal(config, key, value, form), AllOf(names(key, value), HasSubstr(form))) << form;
    }
    config[form]["rope_type"] = "yarn";
    EXPECT_THAT(refusal(config, "truncate", 1, form), AllOf(names("truncate", 1), HasSubstr(form)));
  }
}

TEST(Families, RefuseSizesThatMakeNoModel) {
  const auto sentence = [](const char* key, const json& value) { return refusal(llama_config(), key, value); };
  const auto names = [](const char* value) {
    return AllOf(StartsWith("dir/config.json describes no model: "), HasSubstr(value), EndsWith("."));
  };
  EXPECT_THAT(sentence("num_attention_heads", 6), names("6"));
  EXPECT_THAT(sentence("num_key_value_heads", 3), names("3 heads of keys and values"));
  EXPECT_THAT(sentence("head_dim", 7), names("7 elements"));
  EXPECT_THAT(sentence("rope_theta", 0.5), names("0.5"));
  EXPECT_THAT(sentence("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}), names("0.5"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [] { decoder_shape_from_config("{", "x.json"); }), HasSubstr("x.json is no JSON"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [] { decoder_shape_from_config("[1]", "x.json"); }),
              HasSubstr("x.json is no JSON"));
}

// A shape that no family has is not written as another.
TEST(Families, WriteNoOtherShapes) {
  DecoderShape shape = shape_of(llama_config());
  shape.biases.mlp = shape.qk_norm = true;
  expect_refusal([&] { config_text(shape); }, "");
  EXPECT_NE(sentence_of([&] { family_name(shape); }), "");
  shape = shape_of(config_of("mistral"));
  shape.biases.qkv = true;
  EXPECT_NE(sentence_of([&] { family_name(shape); }), "");
}

}  // namespace
}  // namespace stretto
