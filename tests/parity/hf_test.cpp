// Models as Hugging Face's transformers keeps them: PyTorch's reference in that form gives PyTorch's logits; what is
// exported from any layout comes back in any other; directories that will not do.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "../device/test_device.hpp"
#include "hf_files.hpp"
#include "parity.hpp"
#include "stretto/models/adapter_files.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

const DecoderShape hf_shape{.layers = 2, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 65};

TrainingOptions hf_options(const DecoderShape& shape = hf_shape, ZeroStage zero = ZeroStage::optimizer) {
  TrainingOptions options;
  options.model = shape;
  options.sharding.zero = zero;
  options.micro_batch = 1;
  options.global_batch = 4;
  return options;
}

// The reference of make_gpt2_reference.py as GPT2LMHeadModel.save_pretrained writes it: its linear weights are [out, in].
HfTensors reference_tensors(const SafetensorsReader& file, bool transposes = true) {
  HfTensors tensors;
  for (const TensorEntry& entry : file.entries()) {
    if (!entry.name.starts_with("h.") && !entry.name.starts_with("w") && !entry.name.starts_with("ln_f")) continue;
    const SafetensorsReader::View view = file.tensor(entry.name);
    HfTensor tensor{entry.shape, std::vector<float>(static_cast<std::size_t>(view.elements))};
    const bool is_linear = entry.name.find(".c_") != std::string::npos && entry.shape.size() == 2;
    const std::int64_t outputs = entry.shape.front(), inputs = entry.shape.back();
    if (is_linear) tensor.shape = {inputs, outputs};
    for (std::int64_t i = 0; i < view.elements; ++i) {
      const std::int64_t to = is_linear && transposes ? i % inputs * outputs + i / inputs : i;
      tensor.values[static_cast<std::size_t>(to)] = static_cast<float>(view.at(i));
    }
    tensors["transformer." + entry.name] = tensor;
  }
  return tensors;
}

class HfDirectory {
 public:
  explicit HfDirectory(bool transposes = true) : tensors(reference_tensors(reference, transposes)) {
    config = nlohmann::json::parse(config_text(hf_shape, 50256));
  }
  std::string write() const {
    directory.write("config.json", config.dump());
    write_tensors(directory / "model.safetensors", tensors);
    return directory.path();
  }
  std::string error() const {
    const std::string sentence = sentence_of([&] { ModelFiles::of_directory(write()).check(hf_shape); });
    if (!sentence.empty()) {
      EXPECT_THAT(sentence, testing::AllOf(testing::EndsWith("."), testing::HasSubstr(directory.path())));
    }
    return sentence;
  }

  const SafetensorsReader reference{std::getenv("GPT2_REFERENCE") != nullptr ? std::getenv("GPT2_REFERENCE")
                                                                             : GPT2_REFERENCE};
  HfTensors tensors;
  nlohmann::json config;
  const TemporaryDirectory directory;
};

// The largest difference between the logits of some sequences and the expected ones.
double logits_error(const Communicator& world, const MeshShape& mesh, const TrainingOptions& options,
                    const std::string& directory, const std::vector<std::int32_t>& tokens,
                    const std::vector<double>& expected, const char* adapter = nullptr) {
  Trainer trainer(Mesh(world, mesh), options);
  begin_with(trainer, directory);
  if (adapter != nullptr) {
    AdapterFiles::of_directory(adapter).load(trainer);
    trainer.optimizer().restore(0);
  }
  const Tensor logits = trainer.logits(Batch::of(tokens, {}, options.model.sequence));
  if (!logits) return 0;  // of another stage
  double error = 0;
  const std::int64_t columns = logits.columns();
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const std::int64_t at = i / columns * options.model.vocabulary + trainer.model().first_column() + i % columns;
    error = std::max(error, std::abs(logits.at(i) - expected[static_cast<std::size_t>(at)]));
  }
  return error;
}

TEST(HfModels, GiveTheLogitsOfPyTorch) {
  const HfDirectory good, control(false);
  const std::string path = good.write(), wrong = control.write();
  const auto tokens = numbers_of<std::int32_t>(good.reference, "inputs");
  const auto expected = numbers_of<double>(good.reference, "logits");
  for (const MeshShape mesh :
       {MeshShape{}, {{Axis::tensor, 2}}, {{Axis::tensor, 2}, {Axis::data, 2}}, {{Axis::pipeline, 2}}}) {
    run_threads(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
      TrainingOptions options = hf_options(hf_shape, mesh[Axis::data] > 1 ? ZeroStage::values : ZeroStage::optimizer);
      if (mesh[Axis::data] > 1) options.tiles = 2;
      EXPECT_LT(logits_error(world, mesh, options, path, tokens, expected), 1e-5);
    });
  }
  run_threads(1, [&](const Communicator& world) {
    EXPECT_GT(logits_error(world, {}, hf_options(), wrong, tokens, expected), 1e-3) << "the control: not transposed";
  });
}

// ./dev interchange sets HF_REFERENCE to a directory that transformers wrote, with reference.safetensors of tokens and
// logits, and ADAPTER_REFERENCE to one of peft's adapter with which they were computed, if any.
TEST(HfModels, GiveTheLogitsOfTransformers) {
  const char* const directory = std::getenv("HF_REFERENCE");
  if (directory == nullptr) GTEST_SKIP() << "HF_REFERENCE names no directory of transformers'; ./dev interchange makes one";
  const SafetensorsReader file(std::string(directory) + "/reference.safetensors");
  const DecoderShape shape = ModelFiles::of_directory(directory).shape();
  ModelFiles::of_directory(directory).check(shape);
  const char* const adapter = std::getenv("ADAPTER_REFERENCE");
  TrainingOptions options = hf_options(shape);
  if (adapter != nullptr) options.adapters = AdapterFiles::of_directory(adapter).options();
  const auto inputs = numbers_of<std::int32_t>(file, "inputs");
  const auto expected = numbers_of<double>(file, "logits");
  run_threads(2, [&](const Communicator& world) {
    EXPECT_LT(logits_error(world, {{Axis::tensor, 2}}, options, directory, inputs, expected, adapter), 1e-4);
    if (adapter != nullptr) {
      EXPECT_GT(logits_error(world, {{Axis::tensor, 2}}, hf_options(shape), directory, inputs, expected), 1e-3)
          << "the control: without the adapter";
    }
  });
}

// Names and shapes of old versions and of GPT2Model.
TEST(HfModels, HaveOtherNamesToo) {
  HfDirectory old;
  old.tensors["transformer.h.0.attn.bias"] = {{1, 1, 16, 16}, std::vector<float>(256)};
  old.tensors["transformer.h.1.attn.masked_bias"] = {{1}, {-1e4F}};
  old.tensors["lm_head.weight"] = old.tensors.at("transformer.wte.weight");
  EXPECT_EQ(old.error(), "");
  HfDirectory plain;
  HfTensors renamed;
  for (const auto& [name, tensor] : plain.tensors) renamed[name.substr(std::string("transformer.").size())] = tensor;
  plain.tensors = renamed;
  EXPECT_EQ(plain.error(), "");
  const auto tokens = numbers_of<std::int32_t>(plain.reference, "inputs");
  run_threads(1, [&](const Communicator& world) {
    EXPECT_LT(
        logits_error(world, {}, hf_options(), plain.directory.path(), tokens, numbers_of<double>(plain.reference, "logits")),
        1e-5);
  });
}

TEST(HfModels, MayLieInSeveralFiles) {
  const HfDirectory whole;
  whole.write();
  HfTensors first, second;
  nlohmann::json map;
  for (const auto& [name, tensor] : whole.tensors) {
    (map.size() % 2 == 0 ? first : second)[name] = tensor;
    map[name] = map.size() % 2 == 0 ? "a.safetensors" : "b.safetensors";
  }
  write_tensors(whole.directory / "a.safetensors", first);
  write_tensors(whole.directory / "b.safetensors", second);
  std::filesystem::remove(whole.directory / "model.safetensors");
  whole.directory.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  ModelFiles::of_directory(whole.directory.path()).check(hf_shape);
  run_threads(1, [&](const Communicator& world) {
    EXPECT_LT(
        logits_error(world, {}, hf_options(), whole.directory.path(), numbers_of<std::int32_t>(whole.reference, "inputs"),
                     numbers_of<double>(whole.reference, "logits")),
        1e-5);
  });
  std::filesystem::create_directory(whole.directory / "inner");
  std::filesystem::rename(whole.directory / "config.json", whole.directory / "inner/config.json");
  for (const char* const elsewhere : {"../a.safetensors", "..", "/a.safetensors"}) {
    map["transformer.wte.weight"] = elsewhere;
    whole.directory.write("inner/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
    try {
      ModelFiles::of_directory(whole.directory / "inner").check(hf_shape);
      ADD_FAILURE() << elsewhere << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(fmt::format("'{}'", elsewhere)),
                                               testing::HasSubstr("transformer.wte.weight")));
    }
  }
}

// A model with fewer positions takes the first ones.
TEST(HfModels, AreCutToShorterSequences) {
  const HfDirectory whole;
  const std::string path = whole.write();
  DecoderShape cut = hf_shape;
  cut.sequence = 5;
  const auto all_tokens = numbers_of<std::int32_t>(whole.reference, "inputs");
  const auto logits = numbers_of<double>(whole.reference, "logits");
  const std::vector<std::int32_t> tokens(all_tokens.begin(), all_tokens.begin() + 5);
  run_threads(1, [&](const Communicator& world) {
    EXPECT_LT(logits_error(world, {}, hf_options(cut), path, tokens, {logits.begin(), logits.begin() + 5L * 65}), 1e-5);
  });
}

FillSlot any_tokens() {
  return [](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) {
    for (std::int64_t i = 0; i < 16; ++i) {
      tokens[i] = static_cast<std::int32_t>((slot * 7 + i * 5) % 65);
      targets[i] = static_cast<std::int32_t>((slot * 7 + i * 5 + 5) % 65);
    }
  };
}

// The file that a layout exports after three steps from the reference, and what it then is in another layout.
std::string exported(const MeshShape& mesh, ZeroStage zero, DType dtype, int steps, const std::string& from) {
  const TemporaryDirectory directory;
  const std::string to = directory / "model";
  run_threads(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
    TrainingOptions options = hf_options(hf_shape, zero);
    options.sharding.dtype = dtype;
    Trainer trainer(Mesh(world, mesh), options);
    begin_with(trainer, from);
    for (int step = 0; step < steps; ++step) trainer.step(any_tokens(), 1e-3);
    export_hf(trainer, to, {});
  });
  EXPECT_EQ(ModelFiles::of_directory(to).shape().hidden, 32);
  EXPECT_FALSE(std::filesystem::exists(to + ".unfinished"));
  ModelFiles::of_directory(to).check(hf_shape);
  return content_of(to + "/model.safetensors");
}

TEST(HfModels, ComeBackFromAnyLayout) {
  HfDirectory reference;
  reference.tensors.at("transformer.ln_f.bias").values = std::vector<float>(32, -0.0F);  // -0 + 0 is 0
  const std::string from = reference.write();
  // As transformers writes it, but for the order of tensors.
  const std::string file = exported({}, ZeroStage::none, DType::f32, 0, from);
  TemporaryDirectory again;
  again.write("config.json", reference.config.dump());
  again.write("model.safetensors", file);
  const SafetensorsReader reader(again / "model.safetensors");
  EXPECT_EQ(reader.entries().size(), reference.tensors.size());
  EXPECT_EQ(reader.metadata("format"), "pt");
  for (const auto& [name, tensor] : reference.tensors) {
    EXPECT_EQ(reader.tensor(name).shape, tensor.shape) << name;
    EXPECT_EQ(numbers_of<float>(reader, name), tensor.values) << name;
  }
  struct Exporter {
    MeshShape mesh;
    ZeroStage zero;
    DType dtype = DType::f32;
  };
  for (const Exporter& layout : {Exporter{{{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::values},
                                 {{{Axis::pipeline, 2}}, ZeroStage::optimizer},
                                 {{{Axis::data, 2}}, ZeroStage::optimizer, DType::bf16},
                                 {{{Axis::ring, 2}}, ZeroStage::none}}) {
    EXPECT_EQ(exported(layout.mesh, layout.zero, layout.dtype, 0, from), file);
  }
  EXPECT_NE(exported({{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::values, DType::f32, 2, from), file)
      << "the control: trained";
}

TEST(HfExports, AreCompleteOrAbsent) {
  const HfDirectory reference;
  const std::string from = reference.write();
  EXPECT_THROW(check_hf_export(from, hf_shape), Error);
  EXPECT_NO_THROW(check_hf_export(from + "/nothing/deep", hf_shape));
  EXPECT_FALSE(std::filesystem::exists(from + "/nothing"));  // what it tries leaves nothing
  EXPECT_THROW(check_hf_export("/proc/nothing", hf_shape), Error);
  std::filesystem::create_symlink("loop", from + "/loop");
  std::filesystem::create_symlink(from + "/config.json/model", from + "/dangling");
  reference.directory.write("empty", "");
  for (const char* const name : {"/loop", "/dangling", "/empty"})
    EXPECT_THROW(check_hf_export(from + name, hf_shape), Error) << name;
  std::filesystem::create_symlink("behind/a_link", from + "/link");
  check_hf_export(from + "/link", hf_shape);
  reference.directory.write("file", "in the way");
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), hf_options());
    EXPECT_THROW(export_hf(trainer, from, {}), Error);
    EXPECT_THROW(export_hf(trainer, from + "/file/model", {}), Error);
    EXPECT_THROW(export_hf(trainer, from + "/model", {},
                           [](const std::string& at) { std::ignore = std::filesystem::file_size(at + "/missing"); }),
                 Error);
    export_hf(trainer, from + "/with_a_slash//", {});
    export_hf(trainer, from + "/link", {});
  });
  ModelFiles::of_directory(from + "/behind/a_link").check(hf_shape);
  ModelFiles::of_directory(from + "/with_a_slash").check(hf_shape);
  EXPECT_FALSE(std::filesystem::exists(from + "/model"));
  EXPECT_FALSE(std::filesystem::exists(from + "/model.unfinished"));
  EXPECT_FALSE(std::filesystem::exists(from + ".unfinished"));
}

TEST(HfErrors, NameWhatIsWrong) {
  using testing::HasSubstr;
  const auto error_with = [](const std::function<void(HfDirectory&)>& change) {
    HfDirectory directory;
    change(directory);
    return directory.error();
  };
  const auto config_error = [&](const char* key, const nlohmann::json& value) {
    const std::string error = error_with([&](HfDirectory& d) { d.config[key] = value; });
    EXPECT_THAT(error, testing::AllOf(HasSubstr("config.json"), HasSubstr(key), HasSubstr(value.dump())));
  };
  EXPECT_EQ(error_with([](HfDirectory&) {}), "");
  config_error("model_type", "bert");
  config_error("activation_function", "relu");
  config_error("tie_word_embeddings", false);
  config_error("scale_attn_by_inverse_layer_idx", true);
  config_error("n_layer", 0);
  config_error("n_embd", "32");
  EXPECT_EQ(error_with([](HfDirectory& d) { d.config["n_inner"] = 128; }), "");
  HfDirectory other;
  other.config["layer_norm_epsilon"] = 1e-6;
  other.config["n_inner"] = 96;
  const DecoderShape shape = ModelFiles::of_directory(other.write()).shape();
  EXPECT_EQ(shape.norm.epsilon, 1e-6);
  EXPECT_EQ(shape.mlp_width, 96);
  EXPECT_THAT(error_with([](HfDirectory& d) { d.config = {1, 2}; }), HasSubstr("no JSON object"));
  EXPECT_THAT(error_with([](HfDirectory& d) { d.config.erase("n_head"); }), HasSubstr("null for n_head"));
  EXPECT_THAT(error_with([](HfDirectory& d) { d.tensors.erase("transformer.h.1.ln_2.bias"); }),
              HasSubstr("lack transformer.h.1.ln_2.bias"));
  EXPECT_THAT(error_with([](HfDirectory& d) {
                d.tensors["transformer.h.2.ln_1.bias"] = {{1}, {0}};
              }),
              HasSubstr("transformer.h.2.ln_1.bias, which is no weight of a gpt2 of 2 layers"));
  EXPECT_THAT(error_with([](HfDirectory& d) {
                d.tensors.at("transformer.h.0.mlp.c_fc.weight").shape = {128, 32};
              }),
              testing::AllOf(HasSubstr("mlp.c_fc.weight"), HasSubstr("[128, 32]"), HasSubstr("[32, 128]")));
  const HfDirectory empty;
  empty.directory.write("config.json", empty.config.dump());
  EXPECT_THROW(ModelFiles::of_directory(empty.directory.path()).check(hf_shape), Error);
  EXPECT_THROW(ModelFiles::of_directory(empty.directory / "nowhere").shape(), Error);
}

}  // namespace
}  // namespace parity
