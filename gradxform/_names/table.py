"""Where each name is. Written by `make tables`; do not edit.

A package or module, its files, and the names in each that it offers. "*" stands for all names of
another package, and a package in its own place for its public modules.
"""

# ruff: noqa: E501

# The public names.
NAMES: dict[str, dict[str, str]] = {
    "gradxform": {
        "gradxform": "compat contrib distributed experimental interop linalg microbatching numerics plot projections schedules slots sparse testing transforms tree tree_utils types",
        "gradxform.base.rule": "ArrayRule EmptyState Transform transform",
        "gradxform.commands": "port",
        "gradxform.commands.finding.lookup": "find",
        "gradxform.compat.returnn.raw_gradients": "AddTruncatedNoiseState RawGradientNormsState add_truncated_noise clip_by_mean_norm clip_by_raw_norm raw_gradient_norms zero_above_raw_norm zero_non_finite",
        "gradxform.engine.lift": "PerLeaf",
        "gradxform.engine.sums": "global_norm",
        "gradxform.interop": "AdaptiveGradClipState AddDecayedWeightsState ClipByGlobalNormState ClipState GradientTransformation GradientTransformationExtraArgs NormalizeState ScaleByTrustRatioState identity init_empty_state set_to_zero stateless stateless_with_tree_map with_extra_args_support",
        "gradxform.leaves.masks": "Mask all_of any_of label_by ndim_at_least none_of path_matches",
        "gradxform.leaves.row_sparse": "RowSparse",
        "gradxform.linalg": "curvature",
        "gradxform.linalg.iterations": "matrix_inverse_pth_root nnls power_iteration",
        "gradxform.linalg.norms": "safe_norm safe_root_mean_squares",
        "gradxform.microbatching.microbatch": "microbatch",
        "gradxform.numerics.numbers": "safe_increment safe_int32_increment",
        "gradxform.optimizers": "*",
        "gradxform.projections": "polytopes",
        "gradxform.run_states.learning_rate": "current_learning_rate current_learning_rates",
        "gradxform.run_states.metrics": "current_step metrics",
        "gradxform.run_states.migration.migrate": "migrate_state",
        "gradxform.run_states.migration.report": "MigratedSlot MigrationReport",
        "gradxform.run_states.optax": "as_optax from_optax_state to_optax_state",
        "gradxform.run_states.optax_closures": "as_optax_closures",
        "gradxform.run_states.reset": "reset_slots",
        "gradxform.run_states.slot_names.access": "get_slots set_slots",
        "gradxform.schedules": "*",
        "gradxform.tables.describe": "Description describe",
        "gradxform.training.derivatives": "scale_gradient value_and_grad_from_state",
        "gradxform.training.distributions": "multi_normal",
        "gradxform.training.gradients": "compute_gradients",
        "gradxform.training.holder": "Optimizer",
        "gradxform.training.layers.scan": "scan_layers",
        "gradxform.training.minimize": "MinimizeResult minimize",
        "gradxform.training.step": "apply_gradients make_step",
        "gradxform.transforms": "*",
        "gradxform.tree.apply": "apply_updates incremental_update periodic_update",
        "gradxform.tree.arithmetic": "bias_correction update_infinity_moment update_moment update_moment_per_elem_norm",
        "gradxform.tree_utils": "tree_map_params",
        "gradxform.types": "ArrayTree ConditionFn MaskOrFn MaskedNode MatrixSlot NonNegativeSlot OptState Params ScalarOrSchedule ShouldSkipUpdateFunction Slot SupportsTransform TransformInitFn TransformUpdateExtraArgsFn TransformUpdateFn Updates",
        "gradxform.values.config": "from_config from_json to_config to_json",
        "gradxform.values.fields": "value",
        "gradxform.values.registry": "register",
        "gradxform.values.value": "Value replace",
        "gradxform.wrappers": "*",
    },
    "gradxform.base": {
        "gradxform.base.rule": "ArrayRule EmptyState GradientTransformation GradientTransformationExtraArgs LOCALITIES T Transform call_update carried check_transform extra_names farthest first_state_of locality_of own_locality_of slots_with state_with tell_moved transform unwrapped",
    },
    "gradxform.commands": {
        "gradxform.commands.run": "main",
    },
    "gradxform.commands.finding": {
        "gradxform.commands.finding.answers": "Answer Found",
        "gradxform.commands.finding.lookup": "find",
    },
    "gradxform.commands.port": {
        "gradxform.commands.port.files": "Judged Ported port python_files",
        "gradxform.commands.port.syntax": "PortError",
    },
    "gradxform.compat": {
        "gradxform.compat": "flax keras returnn tf1 tf_contrib",
        "gradxform.compat.keras": "keras3",
    },
    "gradxform.compat.keras": {
        "gradxform.compat.keras": "schedules",
        "gradxform.compat.keras.bridge": "as_keras from_keras register_optimizer",
        "gradxform.compat.keras.configs": "Optimizer deserialize get serialize",
        "gradxform.compat.keras.files": "load_optimizer",
        "gradxform.compat.keras.holders": "LossScaleOptimizer LossScaleOptimizerV1",
        "gradxform.compat.keras.keras": "Adadelta Adagrad Adam Adamax Ftrl Nadam RMSprop SGD",
        "gradxform.compat.keras.schedules": "CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay LinearCosineDecay PiecewiseConstantDecay PolynomialDecay",
        "gradxform.compat.keras.weights": "get_weights set_weights",
    },
    "gradxform.compat.returnn": {
        "gradxform.compat.returnn.returnn": "AMSGrad BaseCustom CustomAdam CustomGradientDescent GradVarianceScaled Nadam NeuralOptimizer1 NormalizedSGD from_config get_optimizer_class",
    },
    "gradxform.compat.tf1": {
        "gradxform.compat.tf1.tf1": "Adadelta Adagrad AdagradDA Adam Ftrl GradientDescent Momentum ProximalAdagrad ProximalGradientDescent RMSProp SyncReplicas cosine_decay cosine_decay_restarts exponential_decay from_checkpoint inverse_time_decay linear_cosine_decay natural_exp_decay piecewise_constant piecewise_constant_decay polynomial_decay to_checkpoint",
    },
    "gradxform.compat.tf_contrib": {
        "gradxform.compat.tf_contrib.tf_contrib": "AGN AdaMax AdamGS AdamW AddSign DropStaleGradient ElasticAverage ExtendWD_Adagrad ExtendWD_Adam ExtendWD_Ftrl ExtendWD_GradientDescent ExtendWD_Momentum ExtendWD_RMSProp GGT LARS LazyAdam LazyAdamGS ModelAverage MomentumW MovingAverage Nadam PowerSign RegAdagrad Shampoo Tower VariableClipping extend_with_decoupled_weight_decay get_cosine_decay_fn get_linear_decay_fn get_restart_decay_fn",
    },
    "gradxform.contrib": {
        "gradxform": "COCOBState DAdaptAdamWState DifferentiallyPrivateAggregateState DoGState DoWGState GaLoreDimensionNumbers GaLoreState HutchinsonState MadgradState MechanicState MomoAdamState MomoState MuonDimensionNumbers MuonState NormalizeState ProdigyState ReduceLROnPlateauState SAMState ScaleByAdemamixState ScaleBySimplifiedAdEMAMixState ScheduleFreeState SophiaState SplitRealAndImaginaryState acprop ademamix adopt cocob dadapt_adamw differentially_private_aggregate dog dowg dpsgd galore hutchinson_estimator_diag_hessian madgrad mechanize momo momo_adam muon normalize prodigy reduce_on_plateau sam scale_by_acprop scale_by_ademamix scale_by_adopt scale_by_cocob scale_by_galore scale_by_madgrad scale_by_muon scale_by_simplified_ademamix schedule_free schedule_free_adamw schedule_free_eval_params schedule_free_sgd simplified_ademamix sophia split_real_and_imaginary",
    },
    "gradxform.distributed": {
        "gradxform.distributed.averaging.demo": "demo",
        "gradxform.distributed.averaging.elastic": "AgnState ElasticAverageState agn elastic_average",
        "gradxform.distributed.averaging.eval_params": "eval_params",
        "gradxform.distributed.averaging.model_average": "ModelAverageState model_average",
        "gradxform.distributed.averaging.outer": "OuterState outer",
        "gradxform.distributed.averaging.outer_recipes": "bmuf diloco post_local_sgd slowmo",
        "gradxform.distributed.averaging.stale": "DropStaleState drop_stale",
        "gradxform.distributed.averaging.synchronous": "SyncReplicasState sync_replicas",
        "gradxform.distributed.averaging.tower": "TowerState scale_loss tower",
        "gradxform.distributed.matrices.shard_matrices": "shard_matrices",
        "gradxform.distributed.programs.measures": "exchange_metrics",
        "gradxform.distributed.replicas.replicas": "Replicas",
        "gradxform.distributed.replicas.resize": "resize_replicas",
        "gradxform.distributed.specs.state_sharding": "state_sharding",
        "gradxform.distributed.specs.state_specs": "state_specs",
        "gradxform.distributed.wire.axis": "AlreadyReducedError local_view",
        "gradxform.distributed.wire.compression": "Compression dct_top_k float8 int8 sign top_k",
        "gradxform.distributed.wire.feedback": "FeedbackState LowRankState",
        "gradxform.distributed.wire.powersgd": "powersgd",
        "gradxform.distributed.zero.wire": "ZeroFeedbackState ZeroLowRankState",
        "gradxform.distributed.zero.zero": "Zero1State zero1",
        "gradxform.testing": "hlo hlo_schedule",
    },
    "gradxform.distributed.center": {
        "gradxform.distributed.center.center": "Center",
        "gradxform.distributed.center.methods": "Method agn drop_stale elastic elastic_gradient",
        "gradxform.distributed.center.refusal": "CenterUnavailableError RefusedError",
        "gradxform.distributed.center.worker": "Pulled Pushed Worker",
    },
    "gradxform.distributed.ray": {
        "gradxform.distributed.ray.center": "RayCenter",
        "gradxform.distributed.ray.worker": "RayWorker",
    },
    "gradxform.distributed.replicas": {
        "gradxform.distributed.replicas.replicas": "MODES Replicas",
    },
    "gradxform.distributed.shares": {
        "gradxform.distributed.shares.shares": "Shares",
    },
    "gradxform.distributed.wire": {
        "gradxform.distributed.wire.wire": "Cast Codec Error SMALL Sent joined narrow new_error owed parted put_together scattered still_to_send sums tree_mean",
    },
    "gradxform.distributed.zero": {
        "gradxform.distributed.zero.zero": "Zero1State zero1",
    },
    "gradxform.engine": {
        "gradxform.engine.calls": "compiled_calls",
        "gradxform.engine.chunks": "devices leaf_signature",
        "gradxform.engine.cuts": "Cut among_zeros array_sum as_pieces by_columns columns_now cut_anew cut_at cuts_of cuts_rows_only exchange_now mean_over_pieces own_piece places_of slot_dim slot_piece summing_over whole_shapes whole_slots",
        "gradxform.engine.in_place": "InPlace run_in_place",
        "gradxform.engine.lift": "PerLeaf check_addable check_gradient map_rows",
        "gradxform.engine.matrices": "Member grams_needed joined map_matrices parted rounded view_of widened",
        "gradxform.engine.renewal": "as_share matrix_numbers renewed",
        "gradxform.engine.rounds": "array_max array_sums cut_here over_pieces whole_shape",
        "gradxform.engine.rows": "ROWS_REMEDY merged_rows put_rows reach_of refuse_rows take_rows",
        "gradxform.engine.run": "RulesAfter rules_after run_rules",
        "gradxform.engine.shards": "as_layers as_shards check_bound for_the_next_step is_for_the_next_step is_seen_in_parts largest_of_parts layer_axes number_of_layers only_adds_up over_all_shards seen_here shard_axes total_over_shards totals_over_parts true_on_all_shards",
        "gradxform.engine.sums": "Columns global_norm sum_of_squares tree_sums",
        "gradxform.engine.tiles": "apply_stored goes_by_tiles",
        "gradxform.engine.together": "made_with read_again sent_here with_slots",
    },
    "gradxform.experimental": {
        "gradxform.experimental": "aggregating",
    },
    "gradxform.leaves": {
        "gradxform.leaves.trees": "Aligned Path align align_params align_slot as_dtype check_params check_shapes dtype_of entry_name flatten_updates flatten_with_names has_rows in_one_dtype is_abstract is_hole is_update_leaf is_variable leaves_of like_params map_updates map_with_paths names_of path_at path_str require_params shape_of structure_of widest_dtype with_paths",
    },
    "gradxform.leaves.storage": {
        "gradxform.leaves.storage.blocks": "BlockForm Blocks block_between_cuts",
        "gradxform.leaves.storage.codes": "CODES Code DynamicCode Float8Code FloatCode LinearCode code_named",
        "gradxform.leaves.storage.crossed": "Crossed",
        "gradxform.leaves.storage.factored": "Factored FactoredForm matrix_axes",
        "gradxform.leaves.storage.layers": "StackedLayer rows_of with_rows",
        "gradxform.leaves.storage.memory": "MEMORIES are_arrays_here as_kept as_seen begun_anew fetched in_memory is_away is_on_host is_type_on_host on_host placed_like returned",
        "gradxform.leaves.storage.parameters": "Chance Compensated Master NarrowForm NarrowParam Remainder",
        "gradxform.leaves.storage.rounded": "Rounded rows_before",
        "gradxform.leaves.storage.stored": "Mean StoredArray has_stored is_stored with_parts",
    },
    "gradxform.linalg": {
        "gradxform.linalg.decompositions": "eigen one_by_one orthonormal spectral_norm",
        "gradxform.linalg.polar": "GRAM_RATIO PRECONDITIONINGS grams_needed orthogonalize sums_of_iterates",
        "gradxform.linalg.powers": "inverse_root inverse_root_within largest_eigenvalue rounding square_root square_roots symmetric_power",
        "gradxform.linalg.products": "HIGHEST frobenius_norm inner_products matmul matmul_in weighted_sum",
    },
    "gradxform.linalg.curvature": {
        "gradxform.linalg.curvature.diagonals": "bartlett_diagonal hutchinson_diagonal",
        "gradxform.linalg.curvature.fisher": "fisher_product",
        "gradxform.linalg.curvature.likelihoods": "likelihood",
        "gradxform.linalg.curvature.products": "gauss_newton_product hessian_product",
    },
    "gradxform.microbatching": {
        "gradxform.microbatching.accumulator": "AccumulationType Accumulator",
        "gradxform.microbatching.batch": "reshape_batch_axis",
        "gradxform.microbatching.microbatch": "micro_grad micro_vmap microbatch",
    },
    "gradxform.numerics": {
        "gradxform.numerics.numbers": "ScheduleError abs_sq add as_flag as_number as_rounded as_step at_least_float32 bias_correction cast count_and_debias has_64_bits is_zero looked_up not_zero number_rank over plus promote real_dtype safe_increment safe_int32_increment same_bits scalar scalar_dtype scalars_as shrinking squarable sum_as_first taming times value_at within",
    },
    "gradxform.optimizers": {
        "gradxform.optimizers.adago": "adago",
        "gradxform.optimizers.adahessian": "adahessian",
        "gradxform.optimizers.adai": "adai",
        "gradxform.optimizers.adalite": "adalite",
        "gradxform.optimizers.adam": "adam adamw amsgrad nadam nadamw",
        "gradxform.optimizers.adam_kin": "adabelief adamax adamaxw radam ranger yogi",
        "gradxform.optimizers.adam_mini": "adam_mini",
        "gradxform.optimizers.adanorm": "adanorm",
        "gradxform.optimizers.adaptive": "adadelta adagrad kate reg_adagrad rmsprop sparse_adagrad",
        "gradxform.optimizers.ademamix": "ademamix simplified_ademamix",
        "gradxform.optimizers.adopt": "acprop adopt",
        "gradxform.optimizers.agreement": "add_sign grad_variance_scaled grams neural_optimizer1 power_sign",
        "gradxform.optimizers.amos": "amos",
        "gradxform.optimizers.apollo": "apollo apollo_mini",
        "gradxform.optimizers.aurora": "aurora",
        "gradxform.optimizers.by_name": "OPTIMIZERS",
        "gradxform.optimizers.came": "came",
        "gradxform.optimizers.cautious": "cautious_adamw cautious_lion",
        "gradxform.optimizers.cocob": "cocob",
        "gradxform.optimizers.dadapt": "dadapt_adamw prodigy",
        "gradxform.optimizers.dion": "dion dion2",
        "gradxform.optimizers.distributed_shampoo": "distributed_shampoo",
        "gradxform.optimizers.dog": "dog dowg",
        "gradxform.optimizers.embeddings": "lazy_adam lazy_adamw rowwise_adagrad",
        "gradxform.optimizers.factored": "adafactor sm3",
        "gradxform.optimizers.galore": "galore",
        "gradxform.optimizers.ggt": "ggt",
        "gradxform.optimizers.gradient_change": "adan diffgrad optimistic_adam optimistic_adam_v2 optimistic_gradient_descent rprop",
        "gradxform.optimizers.grokfast": "grokfast_adamw",
        "gradxform.optimizers.input_moments": "newton_muon",
        "gradxform.optimizers.kl_shampoo": "kl_shampoo",
        "gradxform.optimizers.laprop": "laprop",
        "gradxform.optimizers.layerwise": "fromage lamb lars novograd sgd_sai",
        "gradxform.optimizers.lbfgs": "lbfgs",
        "gradxform.optimizers.lbfgs_steps": "lbfgs_steps",
        "gradxform.optimizers.lbfgsb": "lbfgsb",
        "gradxform.optimizers.madgrad": "madgrad",
        "gradxform.optimizers.mars": "mars_adamw",
        "gradxform.optimizers.momentum": "aggmo sgd sgdw",
        "gradxform.optimizers.momo": "momo momo_adam",
        "gradxform.optimizers.muon": "muon",
        "gradxform.optimizers.muonclip": "muonclip",
        "gradxform.optimizers.muown": "muown",
        "gradxform.optimizers.newton_cg": "newton_cg",
        "gradxform.optimizers.noise": "noisy_sgd",
        "gradxform.optimizers.normalization": "normalized_sgd",
        "gradxform.optimizers.normuon": "adamuon normuon",
        "gradxform.optimizers.optimizer": "optimizer",
        "gradxform.optimizers.pnm": "adapnm pnm",
        "gradxform.optimizers.privacy": "dpsgd",
        "gradxform.optimizers.proximal": "adagrad_da ftrl proximal_adagrad proximal_sgd",
        "gradxform.optimizers.psgd": "psgd_kron",
        "gradxform.optimizers.quasi_hyperbolic": "qhadam qhm",
        "gradxform.optimizers.racs": "racs",
        "gradxform.optimizers.radial": "adamp sgdp",
        "gradxform.optimizers.ranger": "ranger21",
        "gradxform.optimizers.schedule_free": "schedule_free_adamw schedule_free_prodigy schedule_free_radam schedule_free_sgd",
        "gradxform.optimizers.schedule_free_plus": "schedule_free_plus",
        "gradxform.optimizers.scion": "scion",
        "gradxform.optimizers.shampoo": "shampoo",
        "gradxform.optimizers.sign": "focus lion sign_sgd signum tiger",
        "gradxform.optimizers.soap": "soap",
        "gradxform.optimizers.sophia": "sophia",
        "gradxform.optimizers.spam": "spam stable_spam",
        "gradxform.optimizers.spectral_sphere": "spectral_sphere",
        "gradxform.optimizers.spectrum": "contra_muon muon_eq polar_grad soft_muon",
        "gradxform.optimizers.splus": "splus",
        "gradxform.optimizers.stable_adam": "adam_atan2 stable_adamw",
        "gradxform.optimizers.step_size": "polyak_sgd",
        "gradxform.optimizers.stiefel": "spel",
        "gradxform.optimizers.tam": "adatam tam",
        "gradxform.optimizers.toward_sgd": "adabound padam",
    },
    "gradxform.plot": {
        "gradxform.plot.curves": "schedule",
        "gradxform.plot.descent": "Path descend paths",
        "gradxform.plot.history": "training",
        "gradxform.plot.memory": "state_memory",
        "gradxform.plot.surfaces": "SURFACES Surface",
    },
    "gradxform.projections": {
        "gradxform.projections.projections": "projection_box projection_halfspace projection_hypercube projection_hyperplane projection_l1_ball projection_l1_sphere projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative projection_simplex projection_vector",
    },
    "gradxform.run_states.migration": {
        "gradxform.run_states.migration.migrate": "migrate_state",
        "gradxform.run_states.migration.report": "MigratedSlot MigrationReport",
    },
    "gradxform.run_states.slot_names": {
        "gradxform.run_states.slot_names.access": "get_slots set_slots",
    },
    "gradxform.schedules": {
        "gradxform.schedules.basic": "as_schedule constant_schedule linear_schedule polynomial_schedule",
        "gradxform.schedules.cooldown": "cooldown_from warmup_stable_decay_schedule",
        "gradxform.schedules.decay": "cosine_decay_restarts cosine_decay_schedule exponential_decay inverse_sqrt_decay inverse_time_decay linear_cosine_decay natural_exp_decay",
        "gradxform.schedules.join": "join_schedules sgdr_schedule warmup_constant_schedule warmup_cosine_decay_schedule warmup_exponential_decay_schedule",
        "gradxform.schedules.periodic": "cosine_sign_decay cyclic_schedule linear_sign_decay restart_sign_decay",
        "gradxform.schedules.piecewise": "cosine_onecycle_schedule linear_onecycle_schedule piecewise_constant_schedule piecewise_interpolate_schedule",
        "gradxform.schedules.product": "product_schedule",
        "gradxform.schedules.rectified": "rectified_warmup_schedule",
        "gradxform.schedules.schedule": "Schedule",
        "gradxform.schedules.stateful": "StatefulSchedule WrappedSchedule",
    },
    "gradxform.sparse": {
        "gradxform.leaves.row_sparse": "RowSparse",
        "gradxform.optimizers.adaptive": "sparse_adagrad",
        "gradxform.optimizers.embeddings": "lazy_adam lazy_adamw rowwise_adagrad",
        "gradxform.sparse.gradient": "grad value_and_grad",
        "gradxform.transforms.densify": "densify",
        "gradxform.transforms.embeddings": "scale_by_adam_catching_up scale_by_rowwise_rss",
        "gradxform.wrappers.accumulation.rows": "accumulate_rows",
        "gradxform.wrappers.sparse": "only_dense only_rows sparse_semantics",
    },
    "gradxform.testing": {
        "gradxform.testing.case": "Case example_params random_gradients",
        "gradxform.testing.promise": "Broken Promise Skipped",
        "gradxform.testing.promises": "PROMISES",
        "gradxform.testing.promises_boxes": "boxes_name_the_axes_of_their_slots",
        "gradxform.testing.promises_derivatives": "derivatives_are_finite derivatives_equal_differences",
        "gradxform.testing.promises_exchanges": "names_the_axes_that_it_needs",
        "gradxform.testing.promises_form": "asks_for_params_by_name goes_to_json_and_back holes_pass is_a_value its_numbers_can_be_in_the_state leaks_no_traced_arrays state_is_a_scan_carry takes_abstract_parameters takes_params_by_keyword",
        "gradxform.testing.promises_inside": "a_nan_goes_no_further_than_a_guard moves_are_known_on_both_sides what_is_inside_is_told_of_moves what_is_inside_knows_the_parameters",
        "gradxform.testing.promises_locality": "looks_no_further_than_it_says",
        "gradxform.testing.promises_measures": "what_comes_after_takes_its_updates what_is_inside_takes_the_inner_steps",
        "gradxform.testing.promises_moves": "copies_move_with_the_parameters says_where_its_steps_lead",
        "gradxform.testing.promises_numbers": "drops_no_imaginary_part extremes_stay_finite follows_its_reference jit_changes_nothing narrow_parameters_have_wide_slots scalars_are_as_wide_as_the_leaves turns_with_complex_numbers_or_refuses vmaps_over_gradients",
        "gradxform.testing.promises_places": "owns_its_buffers runs_inside_optax_and_optax_inside runs_on_explicit_meshes sharded_equals_unsharded",
        "gradxform.testing.promises_rows": "touches_rows_or_refuses",
        "gradxform.testing.promises_slots": "says_which_slots_are_copies says_whose_its_states_are",
        "gradxform.testing.promises_traits": "says_what_its_state_holds says_what_its_updates_are",
        "gradxform.testing.references": "Reference TreeReference as_tree only sequence stateless zeros",
        "gradxform.testing.report": "BrokenPromises Finding Report check",
        "gradxform.testing.storages": "Outliers StorageFinding StorageReport check_storage storages_of",
    },
    "gradxform.training": {
        "gradxform.training.gradients": "compute_gradients",
        "gradxform.training.holder": "Optimizer",
        "gradxform.training.layers.scan": "scan_layers",
        "gradxform.training.minimize": "MinimizeResult minimize",
        "gradxform.training.step": "apply_gradients make_step",
    },
    "gradxform.transforms": {
        "gradxform.transforms.accumulation": "ApplyEvery apply_every",
        "gradxform.transforms.adago": "AdaGOState scale_by_adago scale_by_shaped_adago",
        "gradxform.transforms.adahessian": "AdaHessianState average_spatial_axes scale_by_adahessian",
        "gradxform.transforms.adai": "ScaleByAdaiState scale_by_adai",
        "gradxform.transforms.adalite": "ScaleByAdaliteState scale_by_adalite",
        "gradxform.transforms.adam": "ScaleByAdamState ScaleByAmsgradState ScaleByNadamState scale_by_adam scale_by_amsgrad scale_by_nadam scale_by_tf_amsgrad scale_by_torch_amsgrad",
        "gradxform.transforms.adam_kin": "RectifiedBeliefState ScaleByBeliefState scale_by_adamax scale_by_belief scale_by_radam scale_by_rectified_belief scale_by_torch_radam scale_by_yogi",
        "gradxform.transforms.adam_mini": "ScaleByAdamMiniState moment_blocks scale_by_adam_mini",
        "gradxform.transforms.adanorm": "ScaleByAdaNormState scale_by_adanorm",
        "gradxform.transforms.adaptive": "ScaleByAdaDeltaState ScaleByKateState ScaleByRStdDevState ScaleByRmsState ScaleByRssState scale_by_adadelta scale_by_kate scale_by_rms scale_by_rss scale_by_stddev",
        "gradxform.transforms.ademamix": "ScaleByAdemamixState ScaleBySimplifiedAdEMAMixState scale_by_ademamix scale_by_simplified_ademamix",
        "gradxform.transforms.adopt": "fourth_root scale_by_acprop scale_by_adopt",
        "gradxform.transforms.agreement": "ScaleByAgreementState ScaleByGradVarianceState scale_by_add_sign scale_by_grad_variance scale_by_grams scale_by_power_sign scale_by_sign_agreement",
        "gradxform.transforms.amos": "StepByAmosState step_by_amos",
        "gradxform.transforms.apollo": "ScaleByApolloState scale_by_apollo",
        "gradxform.transforms.aurora": "ScaleByAuroraState scale_by_aurora",
        "gradxform.transforms.came": "ScaleByConfidenceState scale_by_confidence",
        "gradxform.transforms.clipping": "ClipByPreviousGlobalNormState adaptive_grad_clip clip clip_by_block_norm clip_by_block_rms clip_by_global_norm clip_by_previous_global_norm unitwise_clip unitwise_norm",
        "gradxform.transforms.cocob": "COCOBState scale_by_cocob",
        "gradxform.transforms.constraints": "NonNegativeParamsState ZeroNansState keep_params_nonnegative zero_nans",
        "gradxform.transforms.counts": "CountUpdatesState count_updates",
        "gradxform.transforms.curvature_diagonal": "EstimateDiagonalState ScaleByCurvatureDiagonalState estimate_diagonal scale_by_curvature_diagonal",
        "gradxform.transforms.dadapt": "DAdaptAdamWState ProdigyState ProdigyWithLimitState step_by_dadapt_adamw step_by_prodigy",
        "gradxform.transforms.densify": "densify",
        "gradxform.transforms.dion": "DionState scale_by_dion",
        "gradxform.transforms.dion2": "Dion2State scale_by_dion2",
        "gradxform.transforms.dog": "DoGState DoWGState scale_by_dog scale_by_dowg",
        "gradxform.transforms.embeddings": "ScaleByAdamCatchingUpState ScaleByRowwiseRssState scale_by_adam_catching_up scale_by_rowwise_rss",
        "gradxform.transforms.factored": "FactoredState ScaleBySM3State constant_decay_rate power_decay_rate scale_by_factored_rms scale_by_sm3",
        "gradxform.transforms.ggt": "ScaleByGgtState scale_by_ggt",
        "gradxform.transforms.gradient_change": "ScaleByAdanState ScaleByDiffGradState ScaleByOptimisticGradientState ScaleByRpropState scale_by_adan scale_by_diffgrad scale_by_optimistic_gradient scale_by_rprop",
        "gradxform.transforms.grokfast": "GrokfastEmaState GrokfastMaState grokfast_ema grokfast_ma",
        "gradxform.transforms.input_moments": "PreconditionByInputsState input_moment precondition_by_inputs",
        "gradxform.transforms.kept_norms": "floor_update_norm keep_matrix_norms",
        "gradxform.transforms.kl_shampoo": "KLShampooState scale_by_kl_shampoo",
        "gradxform.transforms.laprop": "ScaleByLaPropState scale_by_laprop scale_by_torch_laprop",
        "gradxform.transforms.layerwise": "ScaleByFirstSnrState ScaleByNovogradState add_norm_loss scale_by_first_snr scale_by_novograd scale_by_param_block_norm scale_by_param_block_rms scale_by_trust_ratio undo_norm_growth",
        "gradxform.transforms.lbfgs.lbfgs": "ScaleByLBFGSState scale_by_lbfgs",
        "gradxform.transforms.lbfgs.lbfgs_steps": "StepByLBFGSState step_by_lbfgs",
        "gradxform.transforms.lbfgs.lbfgsb": "StepByLBFGSBState step_by_lbfgsb",
        "gradxform.transforms.lbfgs.line_search": "BacktrackingLinesearchInfo ScaleByBacktrackingLinesearchState scale_by_backtracking_linesearch",
        "gradxform.transforms.lbfgs.zoom": "ScaleByZoomLinesearchState ZoomLinesearchInfo scale_by_zoom_linesearch",
        "gradxform.transforms.madgrad": "MadgradState scale_by_madgrad",
        "gradxform.transforms.mars": "ScaleByMarsState scale_by_mars",
        "gradxform.transforms.matrices.dimensions": "GaLoreDimensionNumbers MuonDimensionNumbers matrix_split",
        "gradxform.transforms.matrices.rule": "MatrixRule",
        "gradxform.transforms.momentum": "EmaState TraceState ema trace",
        "gradxform.transforms.momo": "MomoAdamState MomoState step_by_momo step_by_momo_adam",
        "gradxform.transforms.muon": "MuonState muon_labels scale_by_muon scale_by_shape",
        "gradxform.transforms.muown": "MuownState step_by_muown",
        "gradxform.transforms.newton_cg": "NewtonCGInfo ScaleByNewtonCGState scale_by_newton_cg",
        "gradxform.transforms.noise": "AddNoiseState add_noise",
        "gradxform.transforms.norm_growth": "LimitNormGrowthState limit_norm_growth",
        "gradxform.transforms.normalization": "centralize normalize normalize_adaptively normalize_by_block_norm normalize_by_block_std normalize_by_update_norm",
        "gradxform.transforms.normuon": "MuonMomentsState scale_by_adamuon scale_by_normuon",
        "gradxform.transforms.orthogonal": "orthogonalize_updates scale_by_fans",
        "gradxform.transforms.orthograd": "orthograd",
        "gradxform.transforms.plateau": "ReduceLROnPlateauState reduce_on_plateau",
        "gradxform.transforms.pnm": "ScaleByAdapnmState ScaleByPnmState scale_by_adapnm scale_by_pnm",
        "gradxform.transforms.privacy": "DifferentiallyPrivateAggregateState differentially_private_aggregate per_example_global_norm_clip per_example_layer_norm_clip",
        "gradxform.transforms.proximal": "AdagradDAState FtrlState ProximalAdagradState ProximalGradientState step_by_dual_averaging step_by_ftrl step_by_proximal_adagrad step_by_proximal_gradient",
        "gradxform.transforms.psgd": "PsgdKronState scale_by_psgd_kron",
        "gradxform.transforms.quasi_hyperbolic": "ScaleByQhmState scale_by_qhadam scale_by_qhm",
        "gradxform.transforms.racs": "ScaleByRowsAndColumnsState scale_by_rows_and_columns",
        "gradxform.transforms.ranger": "ScaleByRanger21State scale_by_ranger21",
        "gradxform.transforms.scaling": "ScaleByScheduleState ScaleState WeightDecaySchedule add_decayed_weights scale scale_by_learning_rate scale_by_schedule",
        "gradxform.transforms.schedule_free_plus": "ScheduleFreePlusState step_by_schedule_free_plus",
        "gradxform.transforms.scion": "scale_by_lmo",
        "gradxform.transforms.shampoo.distributed_shampoo": "DistributedShampooState scale_by_distributed_shampoo",
        "gradxform.transforms.shampoo.shampoo": "ShampooState step_by_shampoo",
        "gradxform.transforms.sign": "ScaleByFocusState ScaleByLionState scale_by_focus scale_by_lion scale_by_sign",
        "gradxform.transforms.soap": "SoapState scale_by_soap",
        "gradxform.transforms.sophia": "HutchinsonState SophiaState hutchinson_estimator_diag_hessian scale_by_sophia",
        "gradxform.transforms.spam": "AdaClipState AdaGNState ClipBySecondMomentState WarmUpAfterResetsState adaclip adagn clip_by_second_moment warm_up_after_resets",
        "gradxform.transforms.spectra": "clip_spectrum contra_spectrum polynomial_spectrum power_spectrum soft_spectrum",
        "gradxform.transforms.spectral_sphere": "scale_by_spectral_sphere",
        "gradxform.transforms.spectrum": "NeuronRmsState ScaleBySpectrumState scale_by_neuron_rms scale_by_spectrum",
        "gradxform.transforms.spikes": "AdaGCState GradNormToClipToZeroState ZClipState adagc grad_norm_to_clip_to_zero zclip",
        "gradxform.transforms.splus": "SPlusState scale_by_mean_side scale_by_splus",
        "gradxform.transforms.stable_adam": "ClipByMovingRmsState clip_by_moving_rms scale_by_adam_atan2 scale_by_stable_adam",
        "gradxform.transforms.step_size": "ScaleByDistanceOverGradientsState scale_by_distance_over_gradients scale_by_polyak",
        "gradxform.transforms.stiefel": "keep_orthogonal project_to_tangent",
        "gradxform.transforms.tam": "ScaleByAdaTamState ScaleByTamState scale_by_adatam scale_by_tam",
        "gradxform.transforms.tf_adam": "scale_by_tf_adam",
        "gradxform.transforms.toward_sgd": "scale_by_adabound scale_by_padam",
        "gradxform.transforms.two_gradients": "ReuseSharpnessState mix_gradients reuse_sharpness subtract_surrogate_gap",
    },
    "gradxform.transforms.lbfgs": {
        "gradxform.transforms.lbfgs.lbfgs": "ScaleByLBFGSState check_memory empty_memory inner scale_by_lbfgs two_loops",
    },
    "gradxform.transforms.shampoo": {
        "gradxform.transforms.shampoo.shampoo": "ShampooState step_by_shampoo",
    },
    "gradxform.tree": {
        "gradxform.tree.arithmetic": "add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like max min mul norm ones_like random_like real scale size split_key_like sub sum unwrap_random_key_data update_infinity_moment update_moment update_moment_per_elem_norm vdot where zeros_like",
        "gradxform.tree.params_in_state": "map_params",
        "gradxform.tree.state": "NamedTupleKey get get_all_with_path set",
    },
    "gradxform.values": {
        "gradxform.values.value": "FrozenTree Hole T Value as_dicts as_node call_name fields_of frozen is_function is_live keeping_arrays keeps_arrays key_of normal printed put_live rebuild replace take_live thawed",
    },
    "gradxform.wrappers": {
        "gradxform.wrappers.accumulation.accumulate": "AccumulateState accumulate",
        "gradxform.wrappers.accumulation.rows": "AccumulateRowsState RowBuffer accumulate_rows",
        "gradxform.wrappers.average": "MovingAverageState StochasticWeightAverageState moving_average stochastic_weight_average",
        "gradxform.wrappers.cautious": "cautious",
        "gradxform.wrappers.complex_parts": "SplitRealAndImaginaryState split_real_and_imaginary",
        "gradxform.wrappers.compose": "chain named_chain sum_of",
        "gradxform.wrappers.condition": "ConditionallyMaskState ConditionallyTransformState conditionally_mask conditionally_transform",
        "gradxform.wrappers.decay": "DecoupledWeightDecayState decoupled_weight_decay",
        "gradxform.wrappers.eval_params": "eval_params swap",
        "gradxform.wrappers.external_step": "external_step",
        "gradxform.wrappers.factor": "factor_state",
        "gradxform.wrappers.flatten": "flatten",
        "gradxform.wrappers.frozen": "freeze selective_transform",
        "gradxform.wrappers.guard": "ApplyIfFiniteState all_finite apply_if_finite skip_large_updates skip_not_finite",
        "gradxform.wrappers.hyperparams.inject": "InjectHyperparamsState InjectStatefulHyperparamsState inject_hyperparams inject_stateful_hyperparams",
        "gradxform.wrappers.lookahead": "LookaheadParams LookaheadState LookaheadWithSlowState lookahead",
        "gradxform.wrappers.loss_scale": "LossScaleState loss_scale scaled_loss",
        "gradxform.wrappers.low_rank.galore": "GaLoreState scale_by_galore",
        "gradxform.wrappers.magma": "MagmaState magma",
        "gradxform.wrappers.mars": "mars",
        "gradxform.wrappers.mechanize": "MechanicState mechanize",
        "gradxform.wrappers.monitor": "MonitorState SnapshotState measure_with_ema monitor on_measurement snapshot",
        "gradxform.wrappers.multi_steps": "MultiSteps MultiStepsState",
        "gradxform.wrappers.muonclip": "qk_clip query_key",
        "gradxform.wrappers.narrow.narrow_params": "KahanState MasterWeightsState StochasticRoundingState kahan master_weights stochastic_rounding",
        "gradxform.wrappers.norm_bounds": "variable_clipping",
        "gradxform.wrappers.offload": "offload_state",
        "gradxform.wrappers.overwrite": "OverwritingAverageState overwriting_average",
        "gradxform.wrappers.param_groups.groups": "ParamGroupsState param_groups",
        "gradxform.wrappers.param_groups.param_group": "param_group",
        "gradxform.wrappers.param_groups.rules": "layerwise_decay mup",
        "gradxform.wrappers.power_average": "PowerMovingAverageState PowerSnapshot power_moving_average power_snapshots reconstruct_average",
        "gradxform.wrappers.project": "project",
        "gradxform.wrappers.radial": "remove_radial",
        "gradxform.wrappers.reset": "ResetStateState reset_state",
        "gradxform.wrappers.sam": "SAMState asam sam",
        "gradxform.wrappers.schedule_free": "ScheduleFreeState ScheduleFreeWithXState schedule_free schedule_free_eval_params",
        "gradxform.wrappers.select": "MaskedState MultiTransformState PartitionState masked multi_transform partition",
        "gradxform.wrappers.sharpness": "gsam looksam wsam",
        "gradxform.wrappers.sparse": "only_dense only_rows sparse_semantics",
        "gradxform.wrappers.spikes": "SkipLossSpikesState skip_loss_spikes",
        "gradxform.wrappers.stacked": "stacked",
        "gradxform.wrappers.stored.storage": "quantize_state state_dtype",
        "gradxform.wrappers.trac": "TracState trac",
        "gradxform.wrappers.variable_names": "variable_names",
        "gradxform.wrappers.with_metrics": "WithMetricsState with_metrics",
    },
}

# What configs may name: of these packages, where they have it, or of these modules.
CONFIG_NAMES: dict[str, str] = {
    "gradxform": (
        "GaLoreDimensionNumbers GradientTransformation GradientTransformationExtraArgs"
        " MultiSteps MuonDimensionNumbers"
        " WrappedSchedule"
        " accumulate accumulate_rows acprop adabelief adabound adaclip adadelta adafactor adagc"
        " adagn adago adagrad adagrad_da adahessian adai adalite adam adam_atan2 adam_mini adamax"
        " adamaxw adamp adamuon adamw adan adanorm adapnm adaptive_grad_clip adatam"
        " add_decayed_weights add_noise add_norm_loss add_sign add_truncated_noise ademamix adopt"
        " aggmo all_of amos amsgrad any_of apollo apollo_mini apply_every apply_if_finite asam"
        " aurora average_spatial_axes"
        " came cautious cautious_adamw cautious_lion centralize chain clip clip_by_block_norm"
        " clip_by_block_rms clip_by_global_norm clip_by_mean_norm clip_by_moving_rms"
        " clip_by_previous_global_norm clip_by_raw_norm clip_by_second_moment clip_spectrum cocob"
        " conditionally_mask conditionally_transform constant_decay_rate constant_schedule"
        " contra_muon cooldown_from cosine_decay_restarts cosine_decay_schedule"
        " cosine_onecycle_schedule cosine_sign_decay count_updates cyclic_schedule"
        " dadapt_adamw decoupled_weight_decay densify differentially_private_aggregate diffgrad dion"
        " dion2 distributed_shampoo dog dowg dpsgd"
        " ema estimate_diagonal exponential_decay external_step"
        " factor_state flatten floor_update_norm focus fourth_root freeze fromage ftrl"
        " galore ggt grad_norm_to_clip_to_zero grad_variance_scaled grams grokfast_adamw"
        " grokfast_ema grokfast_ma gsam"
        " hutchinson_estimator_diag_hessian"
        " identity inject_hyperparams inverse_sqrt_decay inverse_time_decay"
        " join_schedules"
        " kahan kate keep_matrix_norms keep_orthogonal keep_params_nonnegative kl_shampoo"
        " label_by lamb laprop lars lazy_adam lazy_adamw lbfgs lbfgs_steps lbfgsb limit_norm_growth"
        " linear_cosine_decay linear_onecycle_schedule linear_schedule linear_sign_decay lion"
        " lookahead looksam loss_scale"
        " madgrad magma mars_adamw masked master_weights matrix_split mechanize mix_gradients"
        " moment_blocks momo momo_adam monitor moving_average muon muon_eq muon_labels muonclip"
        " muown"
        " nadam nadamw named_chain natural_exp_decay ndim_at_least neural_optimizer1 newton_cg"
        " newton_muon noisy_sgd none_of normalize normalize_adaptively normalize_by_block_norm"
        " normalize_by_block_std normalize_by_update_norm normalized_sgd normuon novograd"
        " offload_state on_measurement only_dense only_rows optimistic_adam optimistic_adam_v2"
        " optimistic_gradient_descent orthogonalize_updates orthograd overwriting_average"
        " padam param_group param_groups partition path_matches piecewise_constant_schedule"
        " piecewise_interpolate_schedule pnm polar_grad polyak_sgd polynomial_schedule"
        " polynomial_spectrum power_decay_rate power_moving_average power_sign power_spectrum"
        " precondition_by_inputs prodigy product_schedule project project_to_tangent"
        " proximal_adagrad proximal_sgd psgd_kron"
        " qhadam qhm qk_clip quantize_state query_key"
        " racs radam ranger ranger21 raw_gradient_norms rectified_warmup_schedule reduce_on_plateau"
        " reg_adagrad remove_radial reset_state restart_sign_decay reuse_sharpness rmsprop"
        " rowwise_adagrad rprop"
        " sam scale scale_by_acprop scale_by_adabound scale_by_adadelta scale_by_adago"
        " scale_by_adahessian scale_by_adai scale_by_adalite scale_by_adam scale_by_adam_atan2"
        " scale_by_adam_catching_up scale_by_adam_mini scale_by_adamax scale_by_adamuon"
        " scale_by_adan scale_by_adanorm scale_by_adapnm scale_by_adatam scale_by_add_sign"
        " scale_by_ademamix scale_by_adopt scale_by_amsgrad scale_by_apollo scale_by_aurora"
        " scale_by_backtracking_linesearch scale_by_belief scale_by_cocob scale_by_confidence"
        " scale_by_curvature_diagonal scale_by_diffgrad scale_by_dion scale_by_dion2"
        " scale_by_distance_over_gradients scale_by_distributed_shampoo scale_by_dog scale_by_dowg"
        " scale_by_factored_rms scale_by_fans scale_by_first_snr scale_by_focus scale_by_galore"
        " scale_by_ggt scale_by_grad_variance scale_by_grams scale_by_kate scale_by_kl_shampoo"
        " scale_by_laprop scale_by_lbfgs scale_by_learning_rate scale_by_lion scale_by_lmo"
        " scale_by_madgrad scale_by_mars scale_by_mean_side scale_by_muon scale_by_nadam"
        " scale_by_neuron_rms scale_by_newton_cg scale_by_normuon scale_by_novograd"
        " scale_by_optimistic_gradient scale_by_padam scale_by_param_block_norm"
        " scale_by_param_block_rms scale_by_pnm scale_by_polyak scale_by_power_sign"
        " scale_by_psgd_kron scale_by_qhadam scale_by_qhm scale_by_radam scale_by_ranger21"
        " scale_by_rectified_belief scale_by_rms scale_by_rows_and_columns scale_by_rowwise_rss"
        " scale_by_rprop scale_by_rss scale_by_schedule scale_by_shape scale_by_shaped_adago"
        " scale_by_sign scale_by_sign_agreement scale_by_simplified_ademamix scale_by_sm3"
        " scale_by_soap scale_by_sophia scale_by_spectral_sphere scale_by_spectrum scale_by_splus"
        " scale_by_stable_adam scale_by_stddev scale_by_tam scale_by_tf_adam scale_by_tf_amsgrad"
        " scale_by_torch_amsgrad scale_by_torch_laprop scale_by_torch_radam scale_by_trust_ratio"
        " scale_by_yogi scale_by_zoom_linesearch schedule_free schedule_free_adamw"
        " schedule_free_plus schedule_free_prodigy schedule_free_radam schedule_free_sgd scion"
        " selective_transform set_to_zero sgd sgd_sai sgdp sgdr_schedule sgdw shampoo sign_sgd"
        " signum simplified_ademamix skip_loss_spikes skip_not_finite sm3 snapshot soap soft_muon"
        " sophia spam sparse_adagrad sparse_semantics spectral_sphere spel split_real_and_imaginary"
        " splus stable_adamw stable_spam stacked state_dtype stateless stateless_with_tree_map"
        " step_by_amos step_by_dadapt_adamw step_by_dual_averaging step_by_ftrl step_by_lbfgs"
        " step_by_lbfgsb step_by_momo step_by_momo_adam step_by_muown step_by_prodigy"
        " step_by_proximal_adagrad step_by_proximal_gradient step_by_schedule_free_plus"
        " step_by_shampoo stochastic_rounding stochastic_weight_average subtract_surrogate_gap"
        " sum_of"
        " tam tiger trac trace"
        " undo_norm_growth"
        " variable_clipping variable_names"
        " warm_up_after_resets warmup_constant_schedule warmup_cosine_decay_schedule"
        " warmup_exponential_decay_schedule warmup_stable_decay_schedule with_metrics wsam"
        " yogi"
        " zclip zero_above_raw_norm zero_nans zero_non_finite"
    ),
    "gradxform.compat.called_numbers": "called_numbers",
    "gradxform.compat.keras.bridge": "from_keras",
    "gradxform.compat.keras.holders": "optimizer_key",
    "gradxform.compat.keras.keras": (
        "aggregate_pairs"
        " keras:Adadelta keras:Adagrad keras:Adam keras:Adamax keras:Ftrl keras:LossScaleOptimizer"
        " keras:LossScaleOptimizerV1 keras:Nadam keras:RMSprop keras:SGD"
        " of_pairs"
    ),
    "gradxform.compat.keras.keras3": (
        "keras3:Adadelta keras3:Adafactor keras3:Adagrad keras3:Adam keras3:AdamW keras3:Adamax"
        " keras3:Ftrl keras3:Lamb keras3:Lion keras3:MultiOptimizer keras3:Muon keras3:Nadam"
        " keras3:RMSprop keras3:SGD keras3:ScheduleFreeAdamW"
        " step_by_schedule_free_adam"
    ),
    "gradxform.compat.keras.schedules": "at_most_inverse_sqrt last_of_every",
    "gradxform.compat.returnn.rates": "cyclic_exponential_decay returnn_rate",
    "gradxform.compat.returnn.returnn": (
        "returnn:AMSGrad returnn:CustomAdam returnn:CustomGradientDescent"
        " returnn:GradVarianceScaled returnn:NeuralOptimizer1 returnn:NormalizedSGD"
    ),
    "gradxform.compat.tf1.tf1": (
        "tf1:Adadelta tf1:Adagrad tf1:AdagradDA tf1:Adam tf1:Ftrl tf1:GradientDescent tf1:Momentum"
        " tf1:ProximalAdagrad tf1:ProximalGradientDescent tf1:RMSProp tf1:SyncReplicas"
    ),
    "gradxform.compat.tf_contrib.tf_contrib": (
        "tf_contrib:AGN tf_contrib:AdaMax tf_contrib:AdamGS tf_contrib:AdamW tf_contrib:AddSign"
        " tf_contrib:DropStaleGradient tf_contrib:ElasticAverage tf_contrib:ExtendWD_Adagrad"
        " tf_contrib:ExtendWD_Adam tf_contrib:ExtendWD_Ftrl tf_contrib:ExtendWD_GradientDescent"
        " tf_contrib:ExtendWD_Momentum tf_contrib:ExtendWD_RMSProp tf_contrib:GGT tf_contrib:LARS"
        " tf_contrib:LazyAdam tf_contrib:LazyAdamGS tf_contrib:ModelAverage tf_contrib:MomentumW"
        " tf_contrib:MovingAverage tf_contrib:Nadam tf_contrib:PowerSign tf_contrib:RegAdagrad"
        " tf_contrib:Shampoo tf_contrib:Tower tf_contrib:VariableClipping"
    ),
    "gradxform.distributed": (
        "agn"
        " dct_top_k drop_stale"
        " elastic_average"
        " float8"
        " int8"
        " model_average"
        " outer"
        " powersgd"
        " shard_matrices sign sync_replicas"
        " top_k tower"
        " zero1"
    ),
    "gradxform.experimental.averages": "accumulate_avg_updates average_per_element_updates averaged_incrementally",
    "gradxform.experimental.moments": "get_per_element_mean_and_sum_sq_diff_grads track_per_element_mean_and_variance_with_ema",
    "gradxform.experimental.process": "processed processed_per_element",
    "gradxform.linalg.curvature.diagonals": "bartlett_diagonal hutchinson_diagonal",
    "gradxform.linalg.curvature.fisher": "fisher_product",
    "gradxform.linalg.curvature.likelihoods": "likelihood",
    "gradxform.linalg.curvature.products": "gauss_newton_product hessian_product",
    "gradxform.projections.polytopes": (
        "projection_affine_set projection_birkhoff projection_box_section projection_polyhedron"
        " projection_sparse_simplex projection_transport"
    ),
    "gradxform.projections.projections": (
        "projection_box projection_hypercube projection_l1_ball projection_l1_sphere"
        " projection_l2_ball projection_l2_sphere projection_linf_ball projection_non_negative"
        " projection_simplex"
    ),
    "gradxform.wrappers.hyperparams.inject": "injected",
    "gradxform.wrappers.monitor": "global_norm",
}
