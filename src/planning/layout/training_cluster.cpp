// Clusters and programs from JSON. Every key is checked, because a misspelt key would silently leave a default in place.
#include "stretto/planning/training_cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/fail.hpp"
#include "core/files/json_error.hpp"
#include "core/files/text_file.hpp"

namespace stretto {
namespace {

using Json = nlohmann::json;

// The object of a file, with what it is in sentences: "a cluster", "a training program".
struct JsonObject {
  const Json& json;
  std::string what;

  JsonObject(const Json& object, std::string name, const std::set<std::string>& known)
      : json(object), what(std::move(name)) {
    require(json.is_object(), "{} is no JSON object.", what);
    for (const auto& [key, value] : json.items()) {
      require(known.count(key) != 0, "{} has the key '{}'; known are {}.", what, key, fmt::join(known, ", "));
    }
  }
  bool has(const char* key) const { return json.contains(key); }
  const Json& at(const char* key) const {
    require(has(key), "{} needs '{}'.", what, key);
    return json[key];
  }
  double positive(const char* key) const {
    const Json& value = at(key);
    require(value.is_number() && value.get<double>() > 0, "{} has {} = {}; give a positive number.", what, key,
            value.dump());
    return value.get<double>();
  }
  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = json[key];
    require(value.is_number() && value.get<double>() >= 0, "{} has {} = {}; give a number of at least 0.", what, key,
            value.dump());
    return value.get<double>();
  }
  double part(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    require(value <= 1, "{} has {} = {}; give a part, from 0 to 1.", what, key, value);
    return value;
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    require(json[key].is_boolean(), "{} has {} = {}; choose true or false.", what, key, json[key].dump());
    return json[key].get<bool>();
  }
};

const std::map<std::string, DType> product_types = {
    {"fp64", DType::f64}, {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

std::string known_product_types() {
  std::string names;
  for (const auto& [name, dtype] : product_types) names += (names.empty() ? "" : ", ") + name;
  return names;
}

std::vector<ProductRate> rates_of(const std::string& type, const Json& points) {
  std::vector<ProductRate> rates;
  require(points.is_array() && !points.empty(), "A cluster's products of {} need a list of [size, tflops].", type);
  for (const Json& point : points) {
    require(point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number() &&
                point[0].get<double>() > 0 && point[1].get<double>() > 0,
            "A cluster's products of {} have the point {}; give [size, tflops], both positive.", type, point.dump());
    const ProductRate rate{point[0].get<double>(), point[1].get<double>() * 1e12};
    const double before = rates.empty() ? 0 : rates.back().size;
    require(before < rate.size, "A cluster's products of {} have the size {} behind {}; sizes must rise.", type, rate.size,
            before);
    rates.push_back(rate);
  }
  return rates;
}

BlockTraffic traffic_of(const Json& json, const std::string& what) {
  const JsonObject object(json, what, {"rows", "wide", "scores", "kernels"});
  return {object.number("rows", 0), object.number("wide", 0), object.number("scores", 0), object.number("kernels", 0)};
}

Json parsed(const std::string& text, const char* what) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "{} cannot be read: {}.", what, json_error_text(error));
  }
}

SharedCores shared_cores_of(const Json& json) {
  const JsonObject object(json, "'shared_cores' of a cluster", {"ranks", "cores"});
  const double ranks = object.positive("ranks"), cores = object.positive("cores");
  for (const double each : {ranks, cores}) {
    require(each == std::floor(each) && each <= 1 << 20,
            "A cluster's shared_cores are of {} ranks and {} cores; give whole numbers from 1 to {}.", ranks, cores,
            1 << 20);
  }
  return {static_cast<int>(ranks), static_cast<int>(cores)};
}

}  // namespace

double TrainingCluster::turns(std::int64_t ranks) const {
  const std::int64_t sharing = std::min<std::int64_t>(ranks, shared_cores.ranks);
  return std::max(1.0, static_cast<double>(sharing) / shared_cores.cores);
}

TrainingCluster training_cluster_from_text(const std::string& text) {
  const Json json = parsed(text, "A cluster");
  const JsonObject object(json, "A cluster",
                          {"peak_tflops", "products", "attention_tflops", "memory_gbs", "memory_gib", "file_gbs",
                           "launch_us", "shared_cores", "narrow_sums", "gpus", "links", "sources"});
  TrainingCluster cluster;
  cluster.peak_flops = object.positive("peak_tflops") * 1e12;
  const Json& products = object.at("products");
  require(products.is_object() && !products.empty(), "A cluster's 'products' need a list of rates by type, such as bf16.");
  for (const auto& [type, points] : products.items()) {
    require(product_types.count(type) != 0, "A cluster's products have the type '{}'; known are {}.", type,
            known_product_types());
    cluster.products[product_types.at(type)] = rates_of(type, points);
  }
  cluster.attention_flops = object.positive("attention_tflops") * 1e12;
  cluster.memory_bytes_per_second = object.positive("memory_gbs") * 1e9;
  const double memory_gib = object.positive("memory_gib"), most_gib = 1 << 30;
  require(memory_gib <= most_gib, "A cluster has memory_gib = {}; give at most {}.", memory_gib, most_gib);
  cluster.memory_bytes = static_cast<std::int64_t>(memory_gib * static_cast<double>(1 << 30));
  cluster.file_bytes_per_second = object.number("file_gbs", 0) * 1e9;
  cluster.launch_seconds = object.number("launch_us", 0) * 1e-6;
  if (object.has("shared_cores")) cluster.shared_cores = shared_cores_of(object.at("shared_cores"));
  cluster.narrow_sums = object.flag("narrow_sums", false);
  cluster.gpus = object.flag("gpus", false);
  cluster.links = link_model_from_text(object.at("links").dump());
  return cluster;
}

TrainingCluster training_cluster_from_file(const std::string& path) {
  return training_cluster_from_text(text_of_file(path, fmt::format("The cluster '{}'", path)));
}

std::string to_text(const TrainingCluster& cluster) {
  nlohmann::ordered_json levels = Json::array(), products = Json::object();
  for (const LinkLevel& level : cluster.links.levels) {
    nlohmann::ordered_json its = {{"name", level.name},
                                  {"alpha_us", level.alpha_us},
                                  {"overhead_us", level.overhead_us},
                                  {"bandwidth_gbs", level.bandwidth_gbs},
                                  {"own_ports", level.own_ports}};
    if (level.ranks > 0) its["ranks"] = level.ranks;
    if (&level != &cluster.links.levels.back()) its["ports"] = level.ports;
    levels.push_back(std::move(its));
  }
  for (const auto& [type, dtype] : product_types) {
    if (cluster.products.count(dtype) == 0) continue;
    for (const ProductRate& rate : cluster.products.at(dtype)) {
      products[type].push_back({rate.size, rate.flops_per_second / 1e12});
    }
  }
  const nlohmann::ordered_json json = {
      {"peak_tflops", cluster.peak_flops / 1e12},
      {"products", products},
      {"attention_tflops", cluster.attention_flops / 1e12},
      {"memory_gbs", cluster.memory_bytes_per_second / 1e9},
      {"memory_gib", static_cast<double>(cluster.memory_bytes) / static_cast<double>(1 << 30)},
      {"file_gbs", cluster.file_bytes_per_second / 1e9},
      {"launch_us", cluster.launch_seconds / 1e-6},
      {"shared_cores", {{"ranks", cluster.shared_cores.ranks}, {"cores", cluster.shared_cores.cores}}},
      {"narrow_sums", cluster.narrow_sums},
      {"gpus", cluster.gpus},
      {"links", {{"levels", levels}, {"local_gbs", cluster.links.local_gbs}}}};
  return json.dump(1) + "\n";
}

TrainingSystem training_system_from_text(const std::string& text) {
  const Json json = parsed(text, "A training program");
  const JsonObject object(
      json, "A training program",
      {"kernels", "recomputes_whole_blocks", "overlaps_products", "overlaps_weights", "overlaps_attention", "hidden_sums",
       "hidden_sums_between", "blocking_messages", "accumulate_bytes", "update_bytes", "loss_bytes"});
  TrainingSystem system;
  if (object.has("kernels")) {
    const JsonObject kernels(json["kernels"], "'kernels' of a training program", {"forward", "backward", "attention"});
    system.writes_scores = true;
    system.forward = traffic_of(kernels.at("forward"), "'forward' of a training program's kernels");
    system.backward = traffic_of(kernels.at("backward"), "'backward' of a training program's kernels");
    system.attention = traffic_of(kernels.at("attention"), "'attention' of a training program's kernels");
  }
  system.recomputes_whole_blocks = object.flag("recomputes_whole_blocks", system.recomputes_whole_blocks);
  system.overlaps_products = object.flag("overlaps_products", system.overlaps_products);
  system.overlaps_weights = object.flag("overlaps_weights", system.overlaps_weights);
  system.overlaps_attention = object.flag("overlaps_attention", system.overlaps_attention);
  system.hidden_sums = object.part("hidden_sums", system.hidden_sums);
  if (object.has("hidden_sums_between")) system.hidden_sums_between = object.part("hidden_sums_between", 0);
  system.blocking_messages = object.flag("blocking_messages", system.blocking_messages);
  system.accumulate_bytes = object.number("accumulate_bytes", 0);
  system.update_bytes = object.number("update_bytes", 0);
  system.loss_bytes = object.number("loss_bytes", 0);
  return system;
}

TrainingSystem training_system_from_file(const std::string& path) {
  return training_system_from_text(text_of_file(path, fmt::format("The training program '{}'", path)));
}

TrainingSystem default_system(const TrainingCluster& cluster) {
  if (!cluster.gpus) return {};
  return {.overlaps_products = false,
          .overlaps_weights = true,
          .overlaps_attention = false,
          .hidden_sums = 0,
          .blocking_messages = true};
}

double TrainingCluster::product_rate(DType dtype, double size) const {
  const auto found = products.find(dtype);
  if (found == products.end()) {
    fail(ErrorCode::invalid_argument, "The cluster has no products of {}; add their rates, or choose another type.",
         training_name(dtype));
  }
  const std::vector<ProductRate>& rates = found->second;
  const auto next = std::ranges::find_if(rates, [&](const ProductRate& each) { return each.size >= size; });
  if (next == rates.end()) return rates.back().flops_per_second;
  if (next == rates.begin()) return next->flops_per_second * std::pow(size / next->size, 3);
  const ProductRate& before = *(next - 1);
  const double part = std::log(size / before.size) / std::log(next->size / before.size);
  return before.flops_per_second + part * (next->flops_per_second - before.flops_per_second);
}

double TrainingCluster::product_seconds(DType dtype, double m, double n, double k, double batch, double other_bytes) const {
  const double size = std::cbrt(m * n * k * batch);
  if (size == 0) return 0;
  const auto width = static_cast<double>(size_of(dtype));
  const double computing = 2 * m * n * k * batch / product_rate(dtype, size);
  const double operands = (m * k + k * n) * batch * width + other_bytes;
  const double results = std::max(0.0, m * n * batch - size * size) * width;
  return std::max(computing, operands / memory_bytes_per_second) + results / memory_bytes_per_second + launch_seconds;
}

}  // namespace stretto
