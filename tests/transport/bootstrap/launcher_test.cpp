// The environment variables of launchers.
#include "transport/bootstrap/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/launch.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Launcher : public testing::Test {
 protected:
  Launcher() {
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                             "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "MASTER_ADDR",
                             "MASTER_PORT", "STRETTO_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"}) {
      set(name, std::nullopt);
    }
  }
  ~Launcher() override {
    while (!variables_.empty()) variables_.pop_back();  // in reverse order, which restores the original values
  }
  void set(const std::string& name, const std::optional<std::string>& value) {
    variables_.push_back(std::make_unique<Variable>(name, value));
  }
  void meet_at(const std::string& host, const std::string& port) {
    set("MASTER_ADDR", host);
    set("MASTER_PORT", port);
  }

 private:
  std::vector<std::unique_ptr<Variable>> variables_;
};

TEST_F(Launcher, IsNoneWithoutItsVariables) {
  EXPECT_FALSE(launched_as());
  set("SLURM_PROCID", "0");  // one variable of a pair does not count: a batch script of Slurm has this one
  EXPECT_FALSE(launched_as());
}

TEST_F(Launcher, OfARankWithoutASizeIsRefused) {
  set("RANK", "0");
  EXPECT_THAT(sentence_of(launched_as), AllOf(HasSubstr("RANK='0'"), HasSubstr("set WORLD_SIZE")));
  set("RANK", std::nullopt);
  set("WORLD_SIZE", "2");
  EXPECT_THAT(sentence_of(launched_as), AllOf(HasSubstr("WORLD_SIZE='2'"), HasSubstr("set RANK")));
}

TEST_F(Launcher, NamesItsJob) {
  meet_at("node7", "29500");
  set("SLURM_PROCID", "1");
  set("SLURM_NTASKS", "2");
  set("SLURM_JOB_ID", "17");
  set("SLURM_STEP_ID", "3");
  const std::string slurm = launched_as()->job;
  EXPECT_THAT(slurm, AllOf(HasSubstr("17"), HasSubstr("3")));
  set("SLURM_STEP_ID", "4");
  EXPECT_NE(launched_as()->job, slurm);
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(launched_as()->job, "");
  set("TORCHELASTIC_RUN_ID", "none");  // torchrun's default
  EXPECT_EQ(launched_as()->job, "");
  set("TORCHELASTIC_RUN_ID", "seven");
  EXPECT_THAT(launched_as()->job, HasSubstr("seven"));
}

TEST_F(Launcher, OfMpiIsToldOfTheBridge) {
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_THAT(sentence_of(launched_as), HasSubstr("stretto/mpi.hpp"));
}

TEST_F(Launcher, IsKnownByItsVariables) {
  const std::vector<std::vector<std::string>> known{{"torchrun", "RANK", "WORLD_SIZE"},
                                                    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                    {"PMI", "PMI_RANK", "PMI_SIZE"},
                                                    {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                                    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"}};
  meet_at("node7", "29500");
  for (const auto& variables : known) {
    const Variable rank(variables[1], "3");
    const Variable size(variables[2], "8");
    const auto as = launched_as();
    ASSERT_TRUE(as) << variables[0];
    EXPECT_EQ(as->launcher, variables[0]);
    EXPECT_EQ(as->rank, 3);
    EXPECT_EQ(as->size, 8);
    EXPECT_EQ(as->host, "node7");
    EXPECT_EQ(as->port, 29500);
  }
}

// Else each of its ranks would be a job of its own.
TEST_F(Launcher, OfAnotherMpiIsRefused) {
  const char* const version = "Open MPI v4.1.4, package: of a distribution";
  const auto refusal = [&] { return sentence_of([&] { require_alone(version); }); };
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(mpirun_ranks(), 0);
  set("SLURM_NTASKS", "2");  // what a batch script has, before its steps
  EXPECT_EQ(refusal(), "");
  for (const std::string name : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const Variable one(name, "1");
    EXPECT_EQ(refusal(), "");
    const Variable several(name, "3");
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name + "=3"), HasSubstr("Open MPI v4.1.4"), HasSubstr("mpirun.openmpi"),
                                 testing::Not(HasSubstr("package"))));
    EXPECT_EQ(mpirun_ranks(), name.starts_with("SLURM") ? 0 : 3);
  }
  set("SLURM_STEP_NUM_TASKS", "2");
  set("OMPI_COMM_WORLD_SIZE", "1");  // an mpirun within the step
  EXPECT_EQ(refusal(), "");
}

TEST_F(Launcher, TakesTheFirstThatIsComplete) {
  meet_at("node7", "29500");
  set("RANK", "1");
  set("SLURM_PROCID", "2");
  set("SLURM_NTASKS", "4");
  EXPECT_EQ(launched_as()->launcher, "Slurm");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(launched_as()->launcher, "torchrun");
}

TEST_F(Launcher, OfOneRankNeedsNoMeetingPlace) {
  set("RANK", "0");
  set("WORLD_SIZE", "1");
  EXPECT_EQ(launched_as()->size, 1);
}

TEST_F(Launcher, WithoutAMeetingPlaceIsRefused) {
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "2");
  const auto names_both = AllOf(HasSubstr("Slurm"), HasSubstr("MASTER_ADDR"), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(sentence_of(launched_as), names_both);
  set("MASTER_ADDR", "node7");
  EXPECT_THAT(sentence_of(launched_as), names_both);
}

TEST_F(Launcher, ThatContradictsItselfIsRefused) {
  meet_at("node7", "29500");
  set("RANK", "2");
  set("WORLD_SIZE", "2");
  EXPECT_THAT(sentence_of(launched_as), AllOf(HasSubstr("RANK=2"), HasSubstr("WORLD_SIZE=2")));
  set("RANK", "-1");
  EXPECT_THAT(sentence_of(launched_as), HasSubstr("RANK='-1'"));
  set("RANK", "one");
  EXPECT_THAT(sentence_of(launched_as), HasSubstr("RANK='one'"));
  set("RANK", "0");
  set("MASTER_PORT", "70000");
  EXPECT_THAT(sentence_of(launched_as), AllOf(HasSubstr("70000"), HasSubstr("65535")));
}

TEST_F(Launcher, MayHoldThePortItself) {
  meet_at("node7", "29500");
  set("RANK", "0");
  set("WORLD_SIZE", "2");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(launched_as()->port, 29501);
  set("STRETTO_PORT", "4000");
  EXPECT_EQ(launched_as()->port, 4000);
  set("STRETTO_PORT", "4294967297");
  EXPECT_THAT(sentence_of(launched_as), AllOf(HasSubstr("STRETTO_PORT"), HasSubstr("65535")));
}

}  // namespace
}  // namespace stretto
