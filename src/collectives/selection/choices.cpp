// A job's choices of methods as a text by which another job can choose alike.
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "collectives/selection/select.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::map<std::string, std::string> Selector::conditions(int ranks, int nodes) const {
  std::map<std::string, std::string> all{{"ranks", fmt::format("{}", ranks)},
                                         {"nodes", fmt::format("{}", nodes)},
                                         {"ranks per core", fmt::format("{:.3g}", circumstances_.ranks_per_core)},
                                         {"reads of other ranks' memory", circumstances_.reads_memory ? "yes" : "no"}};
  for (const char* const name : {"STRETTO_ALGO", "STRETTO_DETERMINISTIC", "STRETTO_TRANSPORT", "STRETTO_RANKS_PER_NODE",
                                 "STRETTO_NODES_PER_POD", "STRETTO_LINKS", "STRETTO_NETWORK"}) {
    all[name] = setting(name);
  }
  return all;
}

std::string Selector::choices(int ranks, int nodes) const {
  Json learnt = Json::array();
  for (const std::string& text : learnt_) learnt.push_back(Json::parse(text));
  return Json{{"conditions", conditions(ranks, nodes)}, {"tuning", Json::parse(file_)}, {"learnt", learnt}}.dump();
}

std::string Selector::choose_by(const std::string& choices, int ranks, int nodes) {
  const std::string source = "the choices of another job";
  std::map<std::string, std::string> theirs;
  std::string file;
  std::vector<std::string> learnt;
  try {
    const Json json = Json::parse(choices);
    json.at("conditions").get_to(theirs);
    file = json.at("tuning").dump();
    for (const Json& each : json.at("learnt")) learnt.push_back(each.dump());
    for (const std::string& text : learnt) Tuning::from_json(text, source);
    Tuning::from_json(file, source);
  } catch (const Json::exception& error) {
    return fmt::format("they cannot be read: {}", error.what());
  } catch (const Error& error) {  // a method that this version does not have
    return fmt::format("they cannot be used: {}", error.what());
  }
  for (const auto& [name, mine] : conditions(ranks, nodes)) {
    if (theirs[name] != mine)
      return fmt::format("they were made with {} '{}', and this job has '{}'", name, theirs[name], mine);
  }
  if (Json::parse(file) == Json::parse(file_) && learnt == learnt_) return "";
  if (!tuning_file_.empty()) return fmt::format("STRETTO_TUNING={} says otherwise", tuning_file_);
  use(file, source);
  for (const std::string& text : learnt) learn(text, source);
  return "";
}

}  // namespace stretto
